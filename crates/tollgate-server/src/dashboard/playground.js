// A limit under traffic that is drawn by hand or picked. The server decides it with the real core.

import { request } from "./api.js";
import { element, shape } from "./element.js";

const [WIDTH, HEIGHT, BINS] = [800, 220, 80];

const LIMITS = ["10/10s fixed", "10/10s sliding", "10/10s log", "10/10s", "5 refill 5/10s reserve 10 refill 2/10s"];

/** Requests in each of the 80 parts of the span. */
const PATTERNS = {
  steady: () => 1,
  bursts: (bin) => (bin % 20 < 2 ? 12 : 0),
  "window edge": (bin) => ([18, 19, 20, 21].includes(bin) ? 8 : bin % 8 === 0 ? 1 : 0),
  ramp: (bin) => Math.floor(bin / 10),
  "drawn by hand": () => 0,
};

export function playground() {
  let bins = bursts("bursts");
  const chart = shape("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "traffic and what gets through", preserveAspectRatio: "none" });
  const summary = element("p", { id: "summary", role: "status" });
  const limit = element("input", { id: "limit", value: LIMITS[0], list: "limits", size: 32, required: true });
  const seconds = element("input", { id: "seconds", type: "number", value: 40, min: 1, max: 86400 });
  const pattern = element("select", { id: "pattern" }, ...Object.keys(PATTERNS).map((name) => element("option", { value: name }, name)));
  pattern.value = "bursts";

  const run = async () => {
    const span = 1000 * Math.max(1, Number(seconds.value));
    try {
      const answer = await request("POST", "/v1/playground", { limit: limit.value, arrivals: arrivals(bins, span) });
      summary.className = "";
      summary.textContent = `${answer.limit}: ${answer.admitted} of ${answer.admitted + answer.denied} get through.`;
      draw(chart, answer, span);
    } catch (error) {
      summary.className = "bad";
      summary.textContent = error.message;
    }
  };
  pattern.addEventListener("change", () => {
    bins = bursts(pattern.value);
    run();
  });
  const paint = (event) => {
    if (event.buttons === 0 && event.type !== "pointerdown") return;
    const box = chart.getBoundingClientRect();
    const bin = Math.min(BINS - 1, Math.max(0, Math.floor((BINS * (event.clientX - box.left)) / box.width)));
    if (pattern.value !== "drawn by hand") pattern.value = "drawn by hand";
    bins[bin] = Math.round(15 * (1 - Math.min(1, Math.max(0, (event.clientY - box.top) / box.height))));
    event.preventDefault();
  };
  chart.addEventListener("pointerdown", paint);
  chart.addEventListener("pointermove", paint);
  chart.addEventListener("pointerup", run);
  const form = element("form", { class: "fields", onsubmit: (event) => { event.preventDefault(); run(); } },
    element("label", {}, "Limit", limit), element("datalist", { id: "limits" }, ...LIMITS.map((value) => element("option", { value }))),
    element("label", {}, "Traffic", pattern), element("label", {}, "Seconds", seconds), element("button", {}, "Try"));
  const node = element("section", {}, element("h2", {}, "Try a limit"), form, summary, chart,
    element("p", { class: "note" }, "Draw traffic into the picture: higher is more. Dots get through, crosses are denied, the area is what is left. No budget of the server changes."));
  run();
  return { title: "Playground", node };
}

function bursts(name) {
  return Array.from({ length: BINS }, (_, bin) => PATTERNS[name](bin));
}

/** Requests spread evenly within each part. */
function arrivals(bins, span) {
  const part = span / BINS;
  return bins.flatMap((many, bin) => Array.from({ length: many }, (_, index) => Math.floor(part * (bin + index / many))));
}

function draw(chart, answer, span) {
  const x = (at) => (WIDTH * at) / span;
  const y = (left) => HEIGHT - 20 - ((HEIGHT - 60) * left) / Math.max(1, answer.capacity);
  const levels = answer.remaining.map(({ at, remaining }) => `L${x(at).toFixed(1)} ${y(remaining).toFixed(1)}`).join("");
  const last = answer.remaining.at(-1)?.at ?? 0;
  const area = shape("path", { class: "level", d: `M0 ${HEIGHT - 20}${levels}L${x(last).toFixed(1)} ${HEIGHT - 20}Z` });
  const mark = ({ at, allowed }) => (allowed
    ? shape("circle", { class: "admitted", cx: x(at).toFixed(1), cy: HEIGHT - 10, r: 3 })
    : shape("path", { class: "denied", d: `M${(x(at) - 3).toFixed(1)} 7l6 6m0-6l-6 6` }));
  chart.replaceChildren(area, ...answer.decisions.map(mark));
}
