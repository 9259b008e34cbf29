// The pages, chosen by the address's fragment, and the stream that feeds them.

import { follow, openSession } from "./api.js";
import { client } from "./client.js";
import { clientHash } from "./element.js";
import { explain } from "./explain.js";
import { overview } from "./overview.js";
import { playground } from "./playground.js";

/** The snapshots of the last two minutes, oldest first. No more are kept. */
const HISTORY_MAX = 120;
const history = [];

const root = document.getElementById("page");
let page = null;

/** A page is `{ title, node, update(history), close() }`. */
function open(hash) {
  const [, name, ...rest] = hash.split("/");
  if (name === "client" && rest.length > 0) return client(decodeURIComponent(rest.join("/")));
  if (name === "explain") return explain(new URLSearchParams(rest.join("/")));
  if (name === "playground") return playground();
  return overview();
}

function show() {
  page?.close?.();
  try {
    page = open(location.hash);
  } catch {
    page = overview();
  }
  document.title = `${page.title} – tollgate`;
  root.replaceChildren(page.node);
  for (const link of document.querySelectorAll("nav a")) {
    const [here, there] = [location.hash || "#/", link.getAttribute("href")].map((hash) => hash.split("/")[1]);
    if (here === there) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (history.length > 0) page.update?.(history);
}

/** The one-time code of the address that a server prints on its terminal. */
const codeOf = (hash) => /^#\/code\/(\w+)$/.exec(hash)?.[1];

addEventListener("hashchange", () => {
  if (codeOf(location.hash) !== undefined) return location.reload();
  show();
  root.focus();
});

document.getElementById("find").addEventListener("submit", (event) => {
  event.preventDefault();
  location.hash = clientHash(new FormData(event.target).get("client"));
});

// A fragment of the address is a page, so this link cannot be one.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  root.focus();
});

const code = codeOf(location.hash);
if (code !== undefined) {
  // A code that is spent is of no use in the history.
  window.history.replaceState(null, "", "#/");
  // Without an answer, following the stream shows why.
  await openSession(code).catch(() => {});
}

show();

follow(
  (snapshot) => {
    history.push(snapshot);
    if (history.length > HISTORY_MAX) history.shift();
    page.update?.(history);
  },
  (state, text) => {
    const status = document.getElementById("connection");
    status.dataset.state = state;
    if (status.textContent !== text) status.textContent = text;
  },
);
