// Why was it denied? A request's attributes, and what each rule says about them.

import { request } from "./api.js";
import { bar, clientLink, count, duration, element, visible } from "./element.js";

export function explain(parameters) {
  const result = element("div", { id: "explanation", "aria-live": "polite" });
  const written = [...parameters].map(([name, value]) => `${name}=${value}`).join("\n") || "client=";
  const attributes = element("textarea", { rows: 4, cols: 40, spellcheck: "false", id: "attributes" });
  attributes.value = written;
  const cost = element("input", { type: "number", min: 0, value: 1, size: 5 });
  const ask = async (event) => {
    event.preventDefault();
    try {
      const answer = await request("POST", "/v1/explain", { attributes: parsed(attributes.value), cost: Number(cost.value) });
      result.replaceChildren(...view(answer));
    } catch (error) {
      result.replaceChildren(element("p", { class: "bad" }, error.message));
    }
  };
  const form = element("form", { class: "fields", onsubmit: ask },
    element("label", {}, "Attributes, one on a line: name=value", attributes), element("label", {}, "Cost", cost), element("button", {}, "Explain"));
  const node = element("div", {}, element("section", {}, element("h2", {}, "Why is a request admitted or denied?"), form,
    element("p", { class: "note" }, "Nothing changes, and nothing is counted.")), result);
  return { title: "Explain", node };
}

function parsed(text) {
  const attributes = {};
  for (const line of text.split("\n").filter((line) => line.trim() !== "")) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`"${line}" is not name=value`);
    attributes[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return attributes;
}

function view(answer) {
  return [element("section", { id: "verdict" }, verdict(answer)), ...answer.rules.map(rule)];
}

function verdict(answer) {
  if (answer.allowed) {
    const least = answer.rule === null ? "no rule covers the request" : `${answer.rule} has the least left: ${count(answer.remaining)}`;
    return element("p", { class: "good" }, `Admitted: ${least}.`);
  }
  const why = answer.rule === null ? "no rule covers the request" : answer.blocked ? `${answer.rule} blocks the client` : `by ${answer.rule}`;
  const when = answer.retry ? `Admitted in ${duration(answer.retryAfterMs)}, at ${answer.retry.time}.` : "It is never admitted at this cost.";
  return element("p", { class: "bad" }, `Denied: ${why}. ${when}`);
}

function rule(rule) {
  const title = element("h2", {}, element("span", { class: "name" }, rule.rule), rule.shadow ? element("span", { class: "warn" }, " shadow") : "");
  if (!rule.covers && rule.limits.length === 0) {
    return element("section", { class: "uncovered" }, title, element("p", { class: "note" }, "does not cover the request:"), element("ul", {}, ...rule.obstacles.map((obstacle) => element("li", {}, reason(obstacle)))));
  }
  const key = Object.entries(rule.key).flatMap(([name, value]) => [` ${name} `, name === "client" ? clientLink(value) : element("span", { class: "name" }, visible(value))]);
  const counts = key.length > 0 ? ["counts by", ...key] : ["one budget for all"];
  const replaced = rule.override ? element("p", { class: "warn" }, `The override for ${Object.entries(rule.override.match).map(([name, value]) => `${name} = ${[value].flat().join(" or ")}`).join(", ")} applies.`) : undefined;
  return element("section", { class: "covered" }, title, element("p", { class: "note" }, ...counts, charges(rule)), replaced, ...rule.limits.map(limit));
}

function charges(rule) {
  if (!rule.covers) return ", covers what other rules overflow into it";
  return `, charges ${count(rule.cost)}${rule.overflow ? `, with ${rule.overflow}` : ""}`;
}

function limit(limit) {
  const says = limit.allowed ? element("span", { class: "good" }, "admits it")
    : element("span", { class: "bad" }, `${limit.blocked ? "blocks" : "denies"} it, ${limit.retryAfterMs === null ? "always at this cost" : `for ${duration(limit.retryAfterMs)}`}`);
  return element("div", {}, element("code", {}, limit.notation), ` has ${count(limit.remaining)} of ${count(limit.limit)} left and `, says, limit.drawn === undefined ? "" : `, ${count(limit.drawn)} drawn`, bar(`${limit.rule}: left`, limit.remaining, limit.limit));
}

function reason({ kind, attribute, value, required }) {
  if (kind === "on_demand") return "only requests that select it are covered";
  if (kind === "missing_key") return `the request has no ${attribute}, by which the rule counts`;
  const wanted = (required ?? []).join(" or ");
  return value === undefined ? `the request has no ${attribute}; it must be ${wanted}` : `${attribute} is ${visible(value)}, not ${wanted}`;
}
