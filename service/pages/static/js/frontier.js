// The frontier: its points come as events while they are found, and the picture fills in.
import { draw, legend, shape } from "./figure.js";
import { heatMap, shade } from "./heat_map.js";
import { percent, significant } from "./numbers.js";

const data = JSON.parse(document.getElementById("data").textContent);
const [across, up] = data.axes;
const all = data.grid[across.name].length * data.grid[up.name].length;
const progress = document.getElementById("progress");
const points = [];
let answer = null;

// Returns the scale-up links of the cluster, once the answer says them; a torus has no domains.
function ownLinks() {
  const inner = answer?.catalogue.fabric.links[0];
  return inner?.kind === "switch" && inner.scale === "up" ? inner : null;
}

function picture(width, colours) {
  const shown = pins();
  const { plot, numbered } = heatMap(points, { grid: data.grid, axes: axes(), tolerance: data.tolerance, pins: shown, width, colours });
  tellLegend(shown, numbered, colours);
  return plot;
}

// Returns the cluster of the question, and the chips of the catalogue beside it, where the axes are
// those that set them apart.
function pins() {
  const own = ownLinks();
  if (!own || across.name !== "domain" || up.name !== "scale_up") return [];
  const isHere = (pin) => pin.domain === own.domain && pin.gb_s === own.gb_s;
  const here = { x: own.domain, y: 1, names: [answer.catalogue.fabric.name], runs: data.pins.find(isHere)?.runs ?? [], isOwn: true };
  const others = data.pins
    .map((pin) => ({ x: pin.domain, y: pin.gb_s / own.gb_s, names: pin.names.filter((name) => name !== here.names[0]), runs: isHere(pin) ? [] : pin.runs }))
    .filter((pin) => pin.names.length);
  return [here, ...others];
}

// The ways that links are said: as GB/s once the answer tells what the question has, and until then
// as multiples of that.
function axes() {
  const scales = { scale_up: ["up", "within a domain"], scale_out: ["out", "between domains"] };
  return data.axes.map((axis) => {
    const [scale, where] = scales[axis.name] ?? [];
    const link = answer?.catalogue.fabric.links.find((one) => one.kind === "switch" && one.scale === scale);
    if (!link) return axis;
    return { ...axis, label: `Bandwidth of a chip ${where} (GB/s)`, factor: link.gb_s };
  });
}

const again = draw("frontier", picture);

function tellLegend(shown, numbered, colours) {
  const ran = (word, fill) => ({ label: `chips of a published run ${word} a pipeline`, fill: "none", mark: () => shape("rect", { x: 2.5, y: 2.5, width: 9, height: 9, fill, stroke: colours.ink, "stroke-width": 1.5 }) });
  legend("frontier", [
    { label: "0% longer", fill: shade(0) },
    { label: "30% longer", fill: shade(0.3) },
    { label: "60% longer or more", fill: shade(0.6) },
    { label: `${percent(data.tolerance)} longer, as predicted`, fill: "none", mark: () => shape("rect", { y: 5.5, width: 14, height: 3, fill: colours.accent }) },
    { label: "? too close to call: the 80% interval reaches across the line" },
    ...(shown.length ? [
      { label: "cluster of the question", fill: "none", mark: () => shape("circle", { cx: 7, cy: 7, r: 5.5, fill: "none", stroke: colours.accent, "stroke-width": 2.5 }) },
      ran("without", colours.ink),
      ran("with", colours.paper),
      { label: "other chips", fill: "none", mark: () => shape("circle", { cx: 7, cy: 7, r: 4, fill: colours.ink }) },
    ] : []),
    ...numbered.map(({ number, texts }) => ({ label: `${number}: ${texts.join("; ")}` })),
  ]);
}

function tell(found) {
  points.push(...found);
  const rows = found.map((point) => {
    const row = document.createElement("tr");
    const cells = [
      point.at[across.name], point.at[up.name],
      point.without_s === null ? "–" : significant(point.without_s),
      point.with_s === null ? "–" : significant(point.with_s),
      point.gap === null ? "–" : percent(point.gap),
      point.gap === null ? "–" : `${percent(point.gap_low)} to ${percent(point.gap_high)}`,
      point.pipeline_needed,
    ];
    cells.forEach((text, i) => {
      const cell = document.createElement(i ? "td" : "th");
      if (!i) cell.scope = "row";
      if (i > 1 && i < 6) cell.className = "n";
      cell.textContent = text;
      row.append(cell);
    });
    return row;
  });
  document.querySelector("#points tbody").append(...rows);
  progress.textContent = points.length < all ? `${points.length} of ${all} points` : `${all} points`;
  again();
}

function finish(whole) {
  answer = whole;
  points.splice(0, points.length, ...whole.points);
  const reasons = whole.reasons.map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    return item;
  });
  document.getElementById("reasons").replaceChildren(...reasons);
  again();
}

if (data.answer) {
  finish(data.answer);
} else {
  progress.textContent = `0 of ${all} points`;
  const events = new EventSource(data.events);
  events.addEventListener("points", (event) => tell(JSON.parse(event.data).points));
  events.addEventListener("answer", (event) => finish(JSON.parse(event.data)));
  events.addEventListener("title", (event) => {
    events.close();
    document.getElementById("title").textContent = JSON.parse(event.data).title;
  });
  events.addEventListener("trouble", (event) => {
    events.close();
    progress.textContent = JSON.parse(event.data).sentences.join(" ");
  });
  // Who comes back asks again, instead of finding a picture that has stopped.
  events.addEventListener("error", () => {
    events.close();
    progress.textContent = `${points.length} of ${all} points; the connection ended. Load the page again for the others.`;
  });
}
