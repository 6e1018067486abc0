// A frontier as a heat map: how much longer a step takes without a pipeline, over two axes, with a
// question mark where that is undecided; the line where it costs the tolerance; and real chips where
// they lie. Places are logarithms (base 2), since values are multiples of each other, and Plot's own
// logarithmic axis leaves labels out.
import { on } from "./palette.js";
import { labelled } from "./pin_labels.js";
import { textWidth } from "./text_width.js";

const MOST = 0.6; // of the scale of colours: beyond it all is "much longer"

export const shade = (gap) => d3.interpolateOranges(0.04 + 0.86 * Math.min(Math.max(gap, 0), MOST) / MOST);

// Returns the edges of each value's cells: halfway to its neighbours.
export function edges(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const places = sorted.map(Math.log2);
  const half = (i) => (places.length > 1 ? (places[i + 1] - places[i]) / 2 : 0.5);
  return new Map(sorted.map((value, i) => [value, [
    places[i] - half(Math.max(i - 1, 0)),
    places[i] + half(Math.min(i, places.length - 2)),
  ]]));
}

// Whether leaving the pipeline away costs more than the tolerance; null where nobody knows.
export function costs(point, tolerance) {
  if (point.gap !== null) return point.gap > tolerance;
  if (!point.exact) return null;
  if (point.without_s === null && point.with_s === null) return null;
  return point.without_s === null;
}

// Returns the sides of cells that part those which cost more than the tolerance from those that do
// not: where a row or a column of cells changes.
export function boundary(cells, tolerance) {
  const at = new Map(cells.map((cell) => [`${cell.column},${cell.row}`, cell]));
  const lines = [];
  for (const cell of cells) {
    const own = costs(cell.point, tolerance);
    const right = at.get(`${cell.column + 1},${cell.row}`);
    const above = at.get(`${cell.column},${cell.row + 1}`);
    const differs = (other) => other && own !== null && costs(other.point, tolerance) !== null && costs(other.point, tolerance) !== own;
    if (differs(right)) lines.push({ x1: cell.x2, x2: cell.x2, y1: cell.y1, y2: cell.y2 });
    if (differs(above)) lines.push({ x1: cell.x1, x2: cell.x2, y1: cell.y2, y2: cell.y2 });
  }
  return lines;
}

export function cellsOf(points, grid, [across, up]) {
  const columns = edges(grid[across.name]);
  const rows = edges(grid[up.name]);
  const column = new Map([...columns.keys()].map((value, i) => [value, i]));
  const row = new Map([...rows.keys()].map((value, i) => [value, i]));
  return points.map((point) => {
    const [x, y] = [point.at[across.name], point.at[up.name]];
    const [x1, x2] = columns.get(x);
    const [y1, y2] = rows.get(y);
    return { point, x, y, x1, x2, y1, y2, column: column.get(x), row: row.get(y) };
  });
}

// pins: [{x, y, names, runs, isOwn}] in the units of the axes. axes: [{name, label, factor}], where a
// factor makes what is shown of the values of the grid. Returns {plot, numbered}: the names of pins
// that have numbers on the map.
export function heatMap(points, { grid, axes, tolerance, pins, width, colours }) {
  const cells = cellsOf(points, grid, axes);
  const [columns, rows] = [edges(grid[axes[0].name]), edges(grid[axes[1].name])];
  const ends = (map) => [d3.min(map.values(), ([low]) => low), d3.max(map.values(), ([, high]) => high)];
  const height = Math.max(300, Math.min(520, rows.size * 76 + 90));
  const margins = { marginLeft: 52, marginRight: 10, marginTop: 30, marginBottom: 46 };
  const [x, y] = [ends(columns), ends(rows)];
  const scaleX = d3.scaleLinear(x, [margins.marginLeft, width - margins.marginRight]);
  const scaleY = d3.scaleLinear(y, [height - margins.marginBottom, margins.marginTop]);
  const inside = pins
    .map(({ names, runs, isOwn, ...pin }) => ({
      names,
      runs,
      isOwn,
      radius: isOwn ? 10 : 6,
      text: names[0] + (names.length > 1 ? ` and ${names.length - 1} more` : ""),
      x: Math.log2(pin.x),
      y: Math.log2(pin.y),
    }))
    .filter((pin) => pin.x > x[0] && pin.x < x[1] && pin.y > y[0] && pin.y < y[1])
    .sort((one, other) => rank(one) - rank(other));
  const cellWidth = (width - 62) / columns.size;
  const sign = (gap) => `${gap > 0 ? "+" : ""}${Math.round(100 * gap)}%`.replace("-", "−");
  const gapWords = (point) => (point.gap !== null ? sign(point.gap) : point.refused ? "none" : point.without_s === null ? "needs PP" : "no PP fits");
  const words = ({ point }) => gapWords(point) + (point.pipeline_needed === "undecided" ? "?" : "");
  const line = boundary(cells, tolerance);
  const place = (pin) => [scaleX(pin.x), scaleY(pin.y)];
  // A number is left out where it has no room, or where a dot lies on it: the table has them all.
  const numberBox = (cell) => ({ left: scaleX(cell.x1), right: scaleX(cell.x1) + 8 + textWidth(words(cell)), top: scaleY(cell.y2), bottom: scaleY(cell.y2) + 18 });
  const isHit = (box) => inside.map(place).some(([left, top]) => left > box.left - 5 && left < box.right + 5 && top > box.top - 5 && top < box.bottom + 5);
  const numbered = cells.filter((cell) => cellWidth > 34 && !isHit(numberBox(cell)));
  const lineBoxes = line.map(({ x1, x2, y1, y2 }) => ({ left: scaleX(x1) - 3, right: scaleX(x2) + 3, top: scaleY(y2) - 3, bottom: scaleY(y1) + 3 }));
  const named = labelled(inside, {
    place,
    taken: [...numbered.map(numberBox), ...lineBoxes],
    area: { left: margins.marginLeft + 2, right: width - margins.marginRight, top: margins.marginTop, bottom: height - margins.marginBottom },
  });
  const upwards = inside.toReversed(); // what is drawn last lies on top
  const fill = ({ point }) => (point.gap !== null ? shade(point.gap) : costs(point, tolerance) === true ? shade(1) : costs(point, tolerance) === false ? shade(0) : colours.line);
  const marker = { x: "x", y: "y" };
  const axis = (values, factor = 1) => ({ ticks: [...values.keys()].map(Math.log2), tickFormat: (place) => Number((factor * 2 ** place).toPrecision(6)).toLocaleString("en-US") });
  const plot = Plot.plot({
    width, height, ...margins,
    style: { fontSize: "12px", background: "transparent", color: colours.ink, fontFamily: "inherit" },
    ariaLabel: `Heat map of ${points.length} points: how much longer a step takes without a pipeline, by ${axes[0].label} and ${axes[1].label}`,
    x: { domain: x, label: axes[0].label, ...axis(columns, axes[0].factor), labelAnchor: "center", labelArrow: "none" },
    y: { domain: y, label: axes[1].label, labelAnchor: "top", labelArrow: "none", ...axis(rows, axes[1].factor) },
    marks: [
      Plot.rect(cells, { x1: "x1", x2: "x2", y1: "y1", y2: "y2", fill, stroke: colours.paper, strokeWidth: 1.5 }),
      Plot.text(numbered, { x: "x1", y: "y2", text: words, dx: 6, dy: 11, textAnchor: "start", fill: (cell) => on(fill(cell)) }),
      Plot.link(line, { x1: "x1", x2: "x2", y1: "y1", y2: "y2", stroke: colours.paper, strokeWidth: 6, strokeLinecap: "round" }),
      Plot.link(line, { x1: "x1", x2: "x2", y1: "y1", y2: "y2", stroke: colours.accent, strokeWidth: 3, strokeLinecap: "round" }),
      Plot.rect(cells, { x1: "x1", x2: "x2", y1: "y1", y2: "y2", fill: "transparent", title: ({ point }) => describe(point) }),
      Plot.dot(upwards, { ...marker, r: 4.5, symbol: (pin) => (pin.runs.length ? "square" : "circle"), fill: (pin) => (isHollow(pin) ? colours.paper : colours.ink), stroke: (pin) => (isHollow(pin) ? colours.ink : colours.paper), strokeWidth: 1.5, title: pinWords }),
      Plot.dot(inside.filter((pin) => pin.isOwn), { ...marker, r: 9, stroke: colours.accent, strokeWidth: 3 }),
      Plot.text(named.labels, { x: (label) => scaleX.invert(label.x), y: (label) => scaleY.invert(label.y), text: "text", fill: colours.ink, stroke: colours.paper, strokeWidth: 4, fontWeight: 600 }),
    ],
  });
  return { plot: leading(plot, upwards), numbered: named.numbered };
}

// The cluster of the question is named before chips that the model was run on, and these before others.
const rank = (pin) => (pin.isOwn ? 0 : pin.runs.length ? 1 : 2);

// Whether all runs at a place had a pipeline.
const isHollow = (pin) => pin.runs.length > 0 && pin.runs.every((run) => run.stages > 1);

function pinWords(pin) {
  const runs = pin.runs.map((run) => `published: ${run.name}, ${run.stages > 1 ? `${run.stages} pipeline stages` : "no pipeline"}`);
  return [pin.names.join(", "), ...runs].join("\n");
}

// Makes each mark of a published run lead to its row in the table.
function leading(plot, pins) {
  for (const mark of plot.querySelectorAll('g[aria-label="dot"] path')) {
    const run = pins[mark.__data__]?.runs[0];
    if (!run || !mark.querySelector("title")) continue;
    mark.style.cursor = "pointer";
    mark.addEventListener("click", () => { location.hash = `published-${run.row}`; });
  }
  return plot;
}

function describe(point) {
  const place = Object.entries(point.at).map(([name, value]) => `${name} ${value}`).join(", ");
  const times = [["without a pipeline", point.without_s], ["with one", point.with_s]]
    .map(([words, seconds]) => `${words}: ${seconds === null ? "none fits" : `${seconds.toPrecision(3)} s`}`);
  return [place, ...times, `pipeline needed: ${point.pipeline_needed}`].join("\n");
}
