// The live page: decisions, rules, clients, the store.

import { bar, bytes, clientLink, count, duration, element, micros, percent, rate, sparkline, table } from "./element.js";

export function overview() {
  const node = element("div", {}, element("p", { class: "note" }, "waiting for the first snapshot"));
  const update = (history) => {
    // A link that has the keyboard's focus keeps it when its table is drawn again.
    const focused = node.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    node.replaceChildren(...view(history));
    if (focused !== null) [...node.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus({ preventScroll: true });
  };
  return { title: "Live", node, update };
}

function view(history) {
  const now = history.at(-1);
  return [cards(now, history), rules(now, history), element("div", { class: "two" }, clients(now), state(now))];
}

function card(id, title, number, note, extra) {
  return element("div", { class: "card", id }, element("h2", {}, title), element("p", { class: "number" }, number), element("p", { class: "note" }, note ?? ""), extra);
}

function cards(now, history) {
  const { total, latency } = now;
  const each = total.perSecond;
  const points = history.map((snapshot) => frequency(snapshot.total));
  const protocols = now.protocols.map(({ protocol, perSecond }) => `${protocol} ${rate(perSecond)}`).join(" · ");
  const shadow = now.rules.filter((rule) => rule.shadow).reduce((sum, rule) => sum + (rule.perSecond?.shadowDenied ?? 0), 0);
  return element("div", { class: "cards" },
    card("allowed", "Admitted a second", rate(each?.allowed), `${count(total.allowed)} since the start`, sparkline("admitted and denied a second", points)),
    card("denied", "Denied a second", rate(each?.denied), `${count(total.denied)} since the start, ${percent(total.rejectionRate)} in the last minute`),
    card("shadow", "Shadows would deny a second", rate(each === null ? null : shadow), `${count(total.shadowDenied)} since the start`),
    card("latency", "Latency, 99 of 100 within", latency ? micros(latency.p99) : "–", latency ? `half within ${micros(latency.p50)}` : "no requests in the last second"),
    card("protocols", "Requests a second", rate(sum(now.protocols)), protocols),
  );
}

function sum(protocols) {
  return protocols.some(({ perSecond }) => perSecond === null) ? null : protocols.reduce((all, { perSecond }) => all + perSecond, 0);
}

/** The rates of counts, with a shadow's denials as denials. */
function frequency(counts) {
  const each = counts.perSecond;
  return { allowed: each?.allowed ?? 0, denied: (each?.denied ?? 0) + (counts.shadow ? (each?.shadowDenied ?? 0) : 0) };
}

function rules(now, history) {
  const headings = [
    { text: "Rule" }, { text: "Limits", class: "optional" }, { text: "Admitted/s", class: "count" },
    { text: "Denied/s", class: "count" }, { text: "Rejected", class: "count" }, { text: "Denied", class: "count optional" }, { text: "Warned", class: "count optional" }, { text: "Two minutes" },
  ];
  const rows = now.rules.map((rule) => {
    const points = history.map((snapshot) => frequency(snapshot.rules.find((other) => other.rule === rule.rule) ?? {}));
    const last = frequency(rule);
    const denied = rule.shadow ? rule.shadowDenied : rule.denied;
    return [
      element("span", { class: "name" }, rule.rule, rule.shadow ? element("span", { class: "warn" }, " shadow") : ""),
      element("code", {}, rule.limits.join(", ") || "with the request"),
      rate(rule.perSecond === null ? null : last.allowed), rate(rule.perSecond === null ? null : last.denied),
      percent(rule.rejectionRate), count(denied), count(rule.warned), sparkline(`${rule.rule}: admitted and denied a second`, points),
    ];
  });
  const others = now.otherRules > 0 ? element("p", { class: "note" }, `and ${now.otherRules} rules with fewer decisions`) : undefined;
  return element("section", { id: "rules" }, element("h2", {}, "Rules"), table("Rules", headings, rows), others);
}

function clients(now) {
  const list = (id, title, rows, headings) => element("section", { id },
    element("h2", {}, title), rows.length > 0 ? table(title, headings, rows) : element("p", { class: "note" }, "none in the last hour"));
  const number = (row) => (row.atLeast === row.atMost ? count(row.atLeast) : `${count(row.atLeast)} to ${count(row.atMost)}`);
  const denied = now.mostDenied.map((row) => [clientLink(row.client), element("span", { class: "name" }, row.rule ?? "–"), number(row)]);
  const heaviest = now.heaviest.map((row) => [clientLink(row.client), number(row)]);
  return element("div", {},
    list("most-denied", "Most denied clients", denied, [{ text: "Client" }, { text: "Rule" }, { text: "Denials", class: "count" }]),
    list("heaviest", "Heaviest clients", heaviest, [{ text: "Client" }, { text: "Units", class: "count" }]));
}

function state(now) {
  const { keys, memory, store } = now;
  const rows = [];
  const row = (name, ...content) => rows.push(element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, ...content)));
  row("Store", store.kind, store.down ? element("strong", { class: "bad" }, ` failing: ${store.down}`) : element("span", { class: "good" }, " answers"));
  row("Degraded", `${duration(store.degradedMs)} in all, ${count(store.errors)} failures, ${count(now.total.degraded)} decisions without the store`);
  if (keys) row("Keys", `${count(keys.live)} of ${count(keys.max)}`, bar("keys in use", keys.live, keys.max, true), keys.refused + keys.pooled > 0 ? element("span", { class: "bad" }, `${count(keys.refused)} refused, ${count(keys.pooled)} pooled`) : "");
  if (memory) row("Memory", `${bytes(memory.resident)} of ${bytes(memory.max)}`, bar("memory in use", memory.resident, memory.max, true));
  row("Up for", `${duration(now.uptimeMs)}, version ${now.version}`);
  return element("section", { id: "state" }, element("h2", {}, "Server"), element("table", { "aria-label": "Server" }, element("tbody", {}, ...rows)));
}
