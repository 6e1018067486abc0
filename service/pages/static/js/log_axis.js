// Logarithmic axes. Plot's own labels leave out most digits, whatever ticks are asked for, so that
// each axis is drawn with texts of its own.
const RATIOS = [0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.4, 1.6, 2];
const WIDE_RATIOS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100];

const text = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 3 });

// Returns an axis of ratios, which reaches equally far to both sides of 1: `scale` for the options of
// a plot, and `marks`. side: "x" or "y". span: the largest ratio.
export function ratioAxis(side, span, label) {
  const ticks = (span > 2.2 ? WIDE_RATIOS : RATIOS).filter((value) => value >= 1 / span && value <= span);
  return axis(side, [1 / span, span], ticks, label);
}

// Returns an axis of times from the shortest to the longest, with room around them. `room`: pixels.
export function timeAxis(side, values, label, room) {
  const [low, high] = [d3.min(values) / 1.25, d3.max(values) * 1.25];
  const decades = d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1);
  const within = (steps) => decades
    .flatMap((decade) => steps.map((step) => Number((step * 10 ** decade).toPrecision(3))))
    .filter((value) => value >= low && value <= high);
  const fits = (ticks) => ticks.length <= Math.max(3, room / 60);
  const ticks = [[1, 1.5, 2, 3, 4, 5, 6, 8], [1, 2, 3, 5], [1, 3], [1]].map(within).find(fits) ?? within([1]);
  return axis(side, [low, high], ticks, label);
}

function axis(side, domain, ticks, label) {
  const [grid, mark, anchor] = side === "x" ? [Plot.gridX, Plot.axisX, "center"] : [Plot.gridY, Plot.axisY, "top"];
  return {
    scale: { type: "log", domain },
    marks: [grid(ticks), mark(ticks, { text, label, labelAnchor: anchor, labelArrow: "none" })],
  };
}
