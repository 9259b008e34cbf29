// The API, with the token that the user entered, or with a session that may only read. The token is
// kept in this variable only, so it is gone with the page, and no other site's page can make a
// browser send it. The session is in a cookie that scripts cannot read.

let token = null;
let asking = null;
let needed = "This server needs the admin token.";

/** An error answer: a status and the server's sentence. */
export class Refusal extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Sends a request, and asks for the token if the server wants one. */
export async function request(method, path, body) {
  for (let reason = null; ; ) {
    if (reason !== null || (method !== "GET" && method !== "POST" && token === null)) {
      await askForToken(reason ?? "A change needs the admin token.");
    }
    const response = await send(method, path, body);
    if (response.status !== 401) return read(response);
    reason = token === null ? needed : "The server refused this token.";
    token = null;
  }
}

/** Exchanges a one-time code for a session. A POST: nothing that merely looks at the address spends the code. */
export async function openSession(code) {
  const response = await send("POST", "/dashboard/session", { code });
  if (!response.ok) needed = await read(response).catch((refusal) => refusal.message);
}

function send(method, path, body, signal) {
  const headers = token === null ? {} : { authorization: `Bearer ${token}` };
  if (body !== undefined) headers["content-type"] = "application/json";
  return fetch(path, { method, headers, signal, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body) });
}

async function read(response) {
  const answer = response.status === 204 ? {} : await response.json().catch(() => ({}));
  if (!response.ok) throw new Refusal(response.status, answer.detail ?? `the server answered ${response.status}`);
  return answer;
}

/** Asks once, however many requests wait for the token. */
function askForToken(reason) {
  asking ??= new Promise((resolve, reject) => {
    const dialog = document.getElementById("token");
    const input = document.getElementById("token-value");
    document.getElementById("token-reason").textContent = reason;
    input.value = "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      asking = null;
      const entered = input.value.trim();
      input.value = "";
      if (dialog.returnValue !== "ok" || entered === "") return reject(new Refusal(401, "Nothing was sent: there is no admin token."));
      token = entered;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

const BACKOFF_MAX_MS = 5000;

/** Follows the event stream for as long as the page lives, and comes back after a failure. */
export async function follow(onSnapshot, onState) {
  let wait = 250;
  for (;;) {
    try {
      onState("connecting", "connecting");
      const response = await send("GET", "/v1/live");
      if (response.status === 401) {
        const reason = token === null ? needed : "The server refused this token.";
        token = null;
        onState("lost", "no token");
        await askForToken(reason);
        continue;
      }
      if (!response.ok) throw new Refusal(response.status, `the server answered ${response.status}`);
      onState("live", "live");
      for await (const data of events(response.body)) {
        wait = 250;
        onSnapshot(JSON.parse(data));
      }
      onState("lost", "the server closed the stream");
    } catch (error) {
      onState("lost", error instanceof Refusal ? error.message : "no connection");
      // A user who closed the dialog is not asked again unasked.
      if (error instanceof Refusal && error.status === 401) await clicked(document.getElementById("enter-token"));
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(wait * 2, BACKOFF_MAX_MS);
  }
}

/** Shows a button until it is clicked. */
function clicked(button) {
  button.hidden = false;
  return new Promise((resolve) => {
    button.addEventListener("click", () => {
      button.hidden = true;
      resolve();
    }, { once: true });
  });
}

/** The data of each server-sent event. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const line = text.slice(0, end).split("\n").find((part) => part.startsWith("data: "));
      if (line !== undefined) yield line.slice(6);
    }
  }
}
