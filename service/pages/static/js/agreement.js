// Measured against predicted step times: the line where both are the same, 10% more and less, and
// the interval of each prediction. Both axes are logarithms of one range, since runs of a team take
// from milliseconds to minutes.
import { timeAxis } from "./log_axis.js";
import { leading } from "./ratios.js";

const TOLERANCE = 0.1;

// rows: [{predicted, measured, low, high, isWithin, name, place}].
export function agreement(rows, { width, colours }) {
  const side = Math.min(width, 560);
  const all = rows.flatMap((row) => [row.measured, row.predicted, row.low, row.high]);
  const x = timeAxis("x", all, "Predicted step time (s)", side);
  const y = timeAxis("y", all, "Measured step time (s)", side);
  const { domain } = x.scale;
  // A line along the diagonal, at so many times the prediction, cut where the picture ends.
  const along = (times) => {
    const from = Math.max(domain[0], domain[0] / times);
    const to = Math.min(domain[1], domain[1] / times);
    return { x1: from, y1: from * times, x2: to, y2: to * times };
  };
  const ends = { x1: "x1", y1: "y1", x2: "x2", y2: "y2" };
  const plot = Plot.plot({
    width: side, height: side,
    marginLeft: 52, marginRight: 14, marginTop: 32, marginBottom: 44,
    style: { fontSize: "12px", background: "transparent", color: colours.ink, fontFamily: "inherit" },
    ariaLabel: `Measured against predicted step time of ${rows.length} runs`,
    x: x.scale,
    y: y.scale,
    marks: [
      ...x.marks,
      ...y.marks,
      Plot.link([along(1)], { ...ends, stroke: colours.ink, strokeWidth: 1.5 }),
      Plot.link([along(1 + TOLERANCE), along(1 / (1 + TOLERANCE))], { ...ends, stroke: colours.ink, strokeDasharray: "4,4" }),
      Plot.ruleY(rows, { y: "measured", x1: "low", x2: "high", stroke: colours.soft, strokeWidth: 2, strokeOpacity: 0.45 }),
      Plot.dot(rows, { x: "predicted", y: "measured", r: 4, fill: (row) => (row.isWithin ? colours.accent : colours.paper), stroke: colours.accent, strokeWidth: 1.5, title: "name" }),
    ],
  });
  return leading(plot, rows);
}
