// Elements, and numbers as people read them. Text is only ever set as text: a client's name is
// never parsed as markup.

/** An element with properties and children. Strings become text nodes. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== undefined && child !== null));
  return made;
}

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element. */
export function shape(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A client's name as a link to its page. */
export function clientLink(name) {
  return element("a", { class: "name", href: clientHash(name) }, visible(name));
}

export function clientHash(name) {
  return `#/client/${encodeURIComponent(name)}`;
}

/** A name with its control and direction characters made visible. A backslash is doubled, so that
 * no name looks like another's escape. */
export function visible(name) {
  const escape = (char) => (char === "\\" ? "\\\\" : `\\u{${char.codePointAt(0).toString(16)}}`);
  return String(name).replace(/[\\\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu, escape);
}

/** A table with a caption, headings and rows of cells. */
export function table(caption, headings, rows) {
  const cell = (tag) => (content, index) => {
    const heading = headings[index];
    const properties = { class: heading.class ?? "", ...(tag === "th" && { scope: "col" }) };
    return element(tag, properties, content);
  };
  const head = element("tr", {}, ...headings.map((heading, index) => cell("th")(heading.text, index)));
  const body = rows.map((row) => element("tr", {}, ...row.map(cell("td"))));
  return element("table", { "aria-label": caption }, element("thead", {}, head), element("tbody", {}, ...body));
}

/** A bar of what is left, red when that is little; or of what is in use, red when that is much. */
export function bar(label, value, max, isUse = false) {
  const share = max > 0 ? Math.min(1, value / max) : 0;
  const inner = element("div");
  inner.style.width = `${100 * share}%`;
  const properties = { class: "bar", role: "meter", "aria-label": label, "aria-valuenow": value, "aria-valuemin": 0, "aria-valuemax": max };
  if (isUse ? share > 0.9 : share < 0.1) properties["data-level"] = "low";
  return element("div", properties, inner);
}

/** Two lines over time, drawn to the larger one's scale. */
export function sparkline(label, history) {
  const max = Math.max(1, ...history.flatMap((point) => [point.allowed, point.denied]));
  const line = (name) => {
    const points = history.map((point, index) => `${(index * 128) / Math.max(1, history.length - 1)},${24 - (22 * point[name]) / max}`);
    return shape("polyline", { class: name, points: points.join(" ") });
  };
  return shape("svg", { class: "spark", viewBox: "0 0 128 26", role: "img", "aria-label": label, preserveAspectRatio: "none" }, line("allowed"), line("denied"));
}

export const count = (value) => Number(value).toLocaleString("en");

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value >= 100 || value === 0 ? count(Math.round(value)) : value.toFixed(1);
}

export const percent = (value) => `${value >= 10 || value === 0 ? Math.round(value) : value.toFixed(1)} %`;

export function bytes(value) {
  return value >= 1e9 ? `${(value / 1e9).toFixed(1)} GB` : `${Math.round(value / 1e6)} MB`;
}

export function duration(millis) {
  const seconds = Math.ceil(millis / 1000);
  if (seconds < 60) return `${seconds} s`;
  const [minutes, hours] = [Math.floor(seconds / 60), Math.floor(seconds / 3600)];
  if (hours >= 48) return `${Math.floor(hours / 24)} d`;
  return hours > 0 ? `${hours} h ${minutes % 60} min` : `${minutes} min ${seconds % 60} s`;
}

export const micros = (value) => (value >= 1000 ? `${(value / 1000).toFixed(1)} ms` : `${Math.round(value)} µs`);

export const clock = (millis) => new Date(millis).toLocaleTimeString("en-GB");
