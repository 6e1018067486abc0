// Runs as measured over predicted step times, each with the interval of its prediction, over
// anything: the predicted step time, or when it was measured. Ratios lie on a logarithmic axis, so
// that twice as long and half as long are equally far from 1.
import { ratioAxis } from "./log_axis.js";

const LEAST_SPAN = 1.5; // of the axis, up and down from 1: a perfect prediction must not fill it
const MARGINS = { marginLeft: 52, marginRight: 14, marginTop: 32, marginBottom: 54 };

// rows: [{x, ratio, low, high, isWithin, name, place}] with low and high over the prediction; a click
// leads to `place`. x: an axis, as `scale` and `marks`. changes: [{x, label}], from which on the level differs.
export function ratios(rows, { x, changes = [], width, colours }) {
  const most = d3.max(rows.flatMap((row) => [row.ratio, 1 / row.ratio, row.high, 1 / row.low]));
  const span = Math.max(most * 1.08, LEAST_SPAN);
  const y = ratioAxis("y", span, "Measured over predicted step time (1 = as predicted)");
  const plot = Plot.plot({
    width, height: 340, ...MARGINS,
    style: { fontSize: "12px", background: "transparent", color: colours.ink, fontFamily: "inherit" },
    ariaLabel: `Measured over predicted step time of ${rows.length} runs`,
    x: x.scale,
    y: y.scale,
    marks: [
      ...y.marks,
      ...x.marks,
      Plot.ruleY([1], { stroke: colours.ink, strokeWidth: 1.5 }),
      Plot.ruleX(rows, { x: "x", y1: "low", y2: "high", stroke: colours.soft, strokeWidth: 2, strokeOpacity: 0.45 }),
      changes.length ? Plot.ruleX(changes, { x: "x", stroke: colours.bad, strokeWidth: 2, strokeDasharray: "5,4" }) : null,
      Plot.dot(rows, { x: "x", y: "ratio", r: 4, fill: (row) => (row.isWithin ? colours.accent : colours.paper), stroke: colours.accent, strokeWidth: 1.5, title: "name" }),
    ],
  });
  return leading(plot, rows);
}

// Makes each dot lead to the place of its row when it is clicked. Tables have the same links.
export function leading(plot, rows) {
  for (const dot of plot.querySelectorAll('g[aria-label="dot"] circle')) {
    const { place } = rows[dot.__data__];
    if (!place) continue;
    dot.style.cursor = "pointer";
    dot.addEventListener("click", () => { location.href = place; });
  }
  return plot;
}
