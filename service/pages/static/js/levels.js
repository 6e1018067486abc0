// How kinds of runs compare with their predictions: the median of measured over predicted, and a
// line that holds 80% of the runs; under a heading for each grouping.
import { ratioAxis } from "./log_axis.js";

const HEIGHT = 40; // of a row: its name, a dot, and air
const MOST = 6; // kinds of a grouping: the table has the others

// levels: [{grouping, name, runs, median, low, high}], each grouping together.
export function levels(all, { width, colours }) {
  const rows = [...d3.group(all, (row) => row.grouping).values()]
    .flatMap((kinds) => kinds.slice(0, MOST))
    .map((row) => ({ ...row, key: `${row.grouping} ${row.name}`, title: `${row.grouping} ${row.name}: ${row.runs} run${row.runs === 1 ? "" : "s"}` }));
  const span = 1.08 * Math.max(1.25, d3.max(rows, (row) => Math.max(row.high, 1 / row.low)));
  const x = ratioAxis("x", span, "Measured over predicted step time (1 = as predicted)");
  return Plot.plot({
    width,
    height: rows.length * HEIGHT + 56,
    marginLeft: 8, marginRight: 16, marginTop: 8, marginBottom: 44,
    style: { fontSize: "12px", background: "transparent", color: colours.ink, fontFamily: "inherit" },
    ariaLabel: `Measured over predicted step time: ${rows.map((row) => `${row.title}, ${row.median.toPrecision(3)}`).join("; ")}`,
    x: x.scale,
    y: { axis: null, domain: rows.map((row) => row.key), padding: 0.2 },
    marks: [
      ...x.marks,
      Plot.ruleX([1], { stroke: colours.ink, strokeWidth: 1.5 }),
      Plot.ruleY(rows, { y: "key", x1: "low", x2: "high", stroke: colours.accent, strokeWidth: 3, strokeLinecap: "round", dy: 9 }),
      Plot.dot(rows, { y: "key", x: "median", r: 6, fill: colours.accent, stroke: colours.paper, strokeWidth: 2, dy: 9 }),
      Plot.text(rows, { y: "key", frameAnchor: "left", text: "title", dx: 8, dy: -9, textAnchor: "start", fill: colours.ink, stroke: colours.paper, strokeWidth: 4 }),
    ],
  });
}
