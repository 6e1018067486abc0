// Predictions with their intervals: a dot, and a line from low to high; and a limit, such as the
// capacity of a chip or a deadline. The dot of one that misses a limit is hollow.
const HEIGHT = 48; // of a row: a dot, and air

// rows: [{name, value, low, high, misses}]. capacity: {value, label}, or nothing.
export function intervals(rows, { unit, capacity, width, colours }) {
  const most = d3.max([...rows.map((row) => row.high), capacity?.value ?? 0]);
  const label = capacity && capacity.value < most / 2 ? { dx: 6, textAnchor: "start" } : { dx: -6, textAnchor: "end" };
  return Plot.plot({
    width,
    height: rows.length * HEIGHT + 64,
    marginLeft: 8,
    marginRight: 16,
    marginTop: 24,
    marginBottom: 40,
    style: { fontSize: "12px", background: "transparent", color: colours.ink, fontFamily: "inherit" },
    ariaLabel: `${unit}: ${rows.map((row) => `${row.name} ${row.value.toPrecision(3)}`).join(", ")}`,
    x: { label: unit, domain: [0, most * 1.06], nice: false, ticks: Math.max(3, Math.floor(width / 90)), grid: true, labelAnchor: "center", labelArrow: "none" },
    y: { axis: null, domain: rows.map((row) => row.name), padding: 0.5 },
    marks: [
      capacity ? Plot.rectX([capacity], { x1: "value", x2: most * 1.06, fill: colours.bad, fillOpacity: 0.1 }) : null,
      capacity ? Plot.ruleX([capacity], { x: "value", stroke: colours.bad, strokeWidth: 2 }) : null,
      capacity ? Plot.text([capacity], { x: "value", frameAnchor: "top", text: "label", ...label, dy: -18, fill: colours.bad }) : null,
      Plot.ruleY(rows, { y: "name", x1: "low", x2: "high", stroke: colours.accent, strokeWidth: 3, strokeLinecap: "round", dy: 9 }),
      Plot.dot(rows, { y: "name", x: "value", r: 6, fill: (row) => (row.misses ? colours.paper : colours.accent), stroke: (row) => (row.misses ? colours.accent : colours.paper), strokeWidth: 2, dy: 9 }),
      Plot.text(rows, { y: "name", frameAnchor: "left", text: "name", dx: 8, dy: -10, textAnchor: "start", fill: colours.ink, stroke: colours.paper, strokeWidth: 4 }),
      Plot.ruleX([0], { stroke: colours.soft }),
    ],
  });
}
