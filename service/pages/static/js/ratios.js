// Runs as measured over predicted step times, each with the interval of its prediction, over
// anything: the predicted step time, or when it was measured. Ratios lie on a logarithmic axis, so
// that twice as long and half as long are equally far from 1.
const LEAST_SPAN = 1.5; // of the axis, up and down from 1: a perfect prediction must not fill it
const MARGINS = { marginLeft: 52, marginRight: 14, marginTop: 32, marginBottom: 54 };

// rows: [{x, ratio, low, high, isWithin, name, place}] with low and high over the prediction; a click
// leads to `place`. x: the options of the axis. changes: [{x, label}], from which on the level differs.
export function ratios(rows, { x, changes = [], width, colours }) {
  const most = d3.max(rows.flatMap((row) => [row.ratio, 1 / row.ratio, row.high, 1 / row.low]));
  const span = Math.max(most * 1.08, LEAST_SPAN);
  const plot = Plot.plot({
    width, height: 340, ...MARGINS,
    style: { fontSize: "12px", background: "transparent", color: colours.ink, fontFamily: "inherit" },
    ariaLabel: `Measured over predicted step time of ${rows.length} runs`,
    x: { labelAnchor: "center", labelArrow: "none", ticks: Math.max(3, Math.floor(width / 110)), ...x },
    y: { type: "log", domain: [1 / span, span], ticks: tickValues(span), tickFormat: (value) => String(value), grid: true, label: "Measured over predicted step time (1 = as predicted)", labelAnchor: "top", labelArrow: "none" },
    marks: [
      Plot.ruleY([1], { stroke: colours.ink, strokeWidth: 1.5 }),
      Plot.ruleX(rows, { x: "x", y1: "low", y2: "high", stroke: colours.soft, strokeWidth: 2, strokeOpacity: 0.45 }),
      changes.length ? Plot.ruleX(changes, { x: "x", stroke: colours.bad, strokeWidth: 2, strokeDasharray: "5,4" }) : null,
      Plot.dot(rows, { x: "x", y: "ratio", r: 4, fill: (row) => (row.isWithin ? colours.accent : colours.paper), stroke: colours.accent, strokeWidth: 1.5, title: "name" }),
    ],
  });
  return leading(plot, rows);
}

// Returns the options of an axis of times from the shortest to the longest, with room around them.
export function logAxis(values, label) {
  const [low, high] = [d3.min(values) / 1.25, d3.max(values) * 1.25];
  const decades = d3.range(Math.floor(Math.log10(low)), Math.ceil(Math.log10(high)) + 1);
  const steps = high / low > 300 ? [1] : high / low > 8 ? [1, 3] : [1, 1.5, 2, 3, 4, 5, 6, 8];
  const ticks = decades.flatMap((decade) => steps.map((step) => step * 10 ** decade)).filter((value) => value >= low && value <= high);
  const tickFormat = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: 3 });
  return { type: "log", domain: [low, high], ticks, tickFormat, label };
}

function tickValues(span) {
  const fine = [0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.4, 1.6, 2];
  const coarse = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100];
  const shown = span > 2.2 ? coarse : fine;
  return shown.filter((value) => value >= 1 / span && value <= span);
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
