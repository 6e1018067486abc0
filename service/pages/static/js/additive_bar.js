// One bar whose parts add up to the whole. Parts that rest on less than measurements are hatched.
import { on } from "./palette.js";
import { textWidth } from "./text_width.js";

const SVG = "http://www.w3.org/2000/svg";
const AIR = 6; // pixels that a label needs beside it

// Returns the lines of a hatch: one way for what is inherited, both ways for what a data sheet says.
export function hatching(ground) {
  const path = document.createElementNS(SVG, "path");
  const both = ground === "data_sheet" ? "M0,0L7,7M-1,6L1,8M6,-1L8,1" : "";
  path.setAttribute("d", `M0,7L7,0M-1,1L1,-1M6,8L8,6${both}`);
  path.setAttribute("stroke", "#ffffff");
  path.setAttribute("stroke-opacity", "0.6");
  path.setAttribute("stroke-width", "1.4");
  return path;
}

function hatches(id) {
  const defs = document.createElementNS(SVG, "defs");
  for (const ground of ["inherited", "data_sheet"]) {
    const pattern = document.createElementNS(SVG, "pattern");
    for (const [name, value] of Object.entries({ id: `${id}-${ground}`, width: 7, height: 7, patternUnits: "userSpaceOnUse" })) {
      pattern.setAttribute(name, value);
    }
    pattern.append(hatching(ground));
    defs.append(pattern);
  }
  return defs;
}

// parts: [{label, value, fill, ground}]. capacity: {value, label}. interval: [low, high].
export function additiveBar(id, parts, { unit, capacity, interval, width, colours }) {
  let end = 0;
  const stacked = parts.map((part) => ({ ...part, x1: end, x2: (end += part.value) }));
  const most = Math.max(end, capacity?.value ?? 0, interval?.[1] ?? 0) * 1.02;
  const scale = (width - 24) / most;
  const named = stacked.filter((part) => textWidth(part.label) + AIR < part.value * scale);
  const plot = Plot.plot({
    width,
    height: 128,
    marginLeft: 8,
    marginRight: 16,
    marginTop: 26,
    marginBottom: 40,
    style: { fontSize: "12px", background: "transparent", color: colours.ink, fontFamily: "inherit" },
    ariaLabel: `${unit}: ${stacked.map((part) => `${part.label} ${part.value.toPrecision(3)}`).join(", ")}`,
    x: { label: unit, domain: [0, most], nice: false, ticks: Math.max(3, Math.floor(width / 110)), labelAnchor: "center", labelArrow: "none" },
    y: { axis: null, domain: [0, 1] },
    marks: [
      Plot.rect(stacked, { x1: "x1", x2: "x2", y1: 0.3, y2: 1, fill: "fill", stroke: colours.paper, strokeWidth: 1 }),
      Plot.rect(stacked.filter((part) => part.ground && part.ground !== "measured"), { x1: "x1", x2: "x2", y1: 0.3, y2: 1, fill: (part) => `url(#${id}-${part.ground})` }),
      Plot.text(named, { x: (part) => (part.x1 + part.x2) / 2, y: 0.65, text: "label", fill: (part) => on(part.fill), stroke: (part) => part.fill, strokeWidth: 5, pointerEvents: "none" }),
      interval ? Plot.ruleY([interval], { y: 0.14, x1: "0", x2: "1", stroke: colours.ink, strokeWidth: 2, marker: "tick" }) : null,
      capacity ? Plot.ruleX([capacity], { x: "value", stroke: colours.bad, strokeWidth: 2 }) : null,
      capacity ? Plot.text([capacity], { x: "value", frameAnchor: "top", text: "label", dx: -6, dy: -20, textAnchor: "end", fill: colours.bad }) : null,
      Plot.rect(stacked, { x1: "x1", x2: "x2", y1: 0.3, y2: 1, fill: "transparent", title: (part) => `${part.label}: ${part.value.toPrecision(3)} (${Math.round((100 * part.value) / end)}%)` }),
    ],
  });
  plot.prepend(hatches(id));
  return plot;
}
