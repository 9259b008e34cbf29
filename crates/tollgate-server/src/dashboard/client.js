// A client's page: its budgets, its denials, and what can be done about them.

import { request } from "./api.js";
import { bar, clock, count, duration, element, table, visible } from "./element.js";

const REFRESH_MS = 2000;

export function client(name) {
  const path = `/v1/clients/${encodeURIComponent(name)}`;
  const budgets = element("section", { id: "budgets" }, element("h2", {}, "Budgets"), element("p", { class: "note" }, "asking the server"));
  const denials = element("section", { id: "denials" });
  const message = element("p", { id: "message", role: "alert" });
  let [limits, timer, isOpen] = [[], null, true];

  /** Returns whether to ask again: not if the user would not enter a token. */
  const load = async () => {
    try {
      const answer = await request("GET", path);
      if (!isOpen) return false;
      limits = answer.limits;
      budgets.replaceChildren(element("h2", {}, "Budgets"), ...budgetView(answer));
      denials.replaceChildren(element("h2", {}, "Last denials"), denialView(answer.denials));
      fillRules(node, limits);
    } catch (error) {
      budgets.replaceChildren(element("h2", {}, "Budgets"), element("p", { class: "bad" }, error.message));
      return error.status !== 401;
    }
    return true;
  };
  const refresh = async () => {
    const goesOn = await load();
    clearTimeout(timer);
    if (isOpen && goesOn) timer = setTimeout(refresh, REFRESH_MS);
  };
  const change = async (done, method, part, body) => {
    try {
      const answer = await request(method, path + part, body);
      message.className = "good";
      message.textContent = typeof done === "function" ? done(answer) : done;
    } catch (error) {
      message.className = "bad";
      message.textContent = error.message;
    }
    await refresh();
  };
  const node = element("div", {},
    element("h2", {}, "Client ", element("span", { class: "name", id: "client-name" }, visible(name))),
    message, budgets, actions(change), denials,
    element("p", {}, element("a", { href: `#/explain/${new URLSearchParams({ client: name })}` }, "Explain a request of this client")));
  refresh();
  const countdown = setInterval(() => {
    for (const cell of node.querySelectorAll("[data-reset]")) cell.textContent = untilReset(Number(cell.dataset.reset));
  }, 1000);
  const close = () => {
    isOpen = false;
    clearTimeout(timer);
    clearInterval(countdown);
  };
  return { title: visible(name), node, close };
}

const untilReset = (at) => (at > Date.now() ? `in ${duration(at - Date.now())}` : "now");

function budgetView(answer) {
  const headings = [{ text: "Rule" }, { text: "Limit" }, { text: "Left", class: "count" }, { text: "" }, { text: "Whole again" }, { text: "Next request" }];
  const rows = answer.limits.map((limit) => [
    element("span", { class: "name" }, limit.rule + (limit.budget ? ` (${limit.budget})` : "")),
    element("code", {}, limit.notation),
    `${count(limit.remaining)} of ${count(limit.limit)}`,
    bar(`${limit.rule}: left`, limit.remaining, limit.limit),
    element("span", { "data-reset": limit.resetAt }, untilReset(limit.resetAt)),
    verdict(limit),
  ]);
  const own = answer.set.map((set) => element("p", { class: "warn" }, `An administrator set ${set.limits.join(", ")} for ${set.rule}.`));
  const none = element("p", { class: "note" }, "No rule counts by client alone.");
  return [rows.length > 0 ? table("Budgets", headings, rows) : none, ...own];
}

function verdict(limit) {
  if (limit.allowed) return element("span", { class: "good" }, "admitted");
  const when = limit.retryAfterMs === null ? "never" : `in ${duration(limit.retryAfterMs)}`;
  if (limit.blocked) return element("strong", { class: "bad" }, `blocked, admitted ${when}`);
  return element("span", { class: "bad" }, `${limit.shadow ? "a shadow would deny it" : "denied"}, admitted ${when}`);
}

function denialView(denials) {
  if (denials.length === 0) return element("p", { class: "note" }, "none in the last hour");
  const rows = denials.map((row) => [element("span", { class: "name" }, row.rule ?? "–"), count(row.atLeast), row.last.map(clock).join(", ")]);
  return table("Last denials", [{ text: "Rule" }, { text: "Denials", class: "count" }, { text: "The last at" }], rows);
}

function actions(change) {
  const span = element("input", { value: "10m", size: 6, required: true, "aria-label": "how long to block" });
  const limit = element("input", { placeholder: "100/s burst 200", size: 14, required: true });
  const rule = element("select", { id: "own-rule" });
  const submit = (handler) => (event) => {
    event.preventDefault();
    handler();
  };
  return element("section", { id: "actions" }, element("h2", {}, "Change"),
    element("form", { class: "fields", id: "block-form", onsubmit: submit(() => change((answer) => `Blocked until ${answer.end.time}.`, "PUT", "/block", { for: span.value })) },
      element("label", {}, "Block for", span), element("button", { class: "danger" }, "Block"),
      element("button", { type: "button", id: "unblock", onclick: () => change("Unblocked.", "DELETE", "/block") }, "Unblock"),
      element("button", { type: "button", id: "reset", onclick: () => change("Reset.", "DELETE", "") }, "Reset")),
    element("form", { class: "fields", id: "limit-form", onsubmit: submit(() => change((answer) => `Set on ${answer.reach}.`, "PUT", "/limits", { rule: rule.value, limit: limit.value })) },
      element("label", {}, "Own limit", limit), element("label", {}, "for the rule", rule), element("button", {}, "Set"),
      element("button", { type: "button", id: "clear-limit", onclick: () => change("The rules' limits apply again.", "DELETE", "/limits") }, "Remove")));
}

/** Keeps the list of rules, and the choice, up to date. */
function fillRules(node, limits) {
  const select = node.querySelector("#own-rule");
  const names = [...new Set(limits.map((limit) => limit.rule))];
  if (names.join("\n") === [...select.options].map((option) => option.value).join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
  if (names.includes(chosen)) select.value = chosen;
}
