// The pictures of reported runs, drawn from figures of the API.
import { agreement } from "./agreement.js";
import { draw, legend } from "./figure.js";
import { levels } from "./levels.js";
import { significant } from "./numbers.js";
import { theme } from "./palette.js";
import { ratios } from "./ratios.js";

const { runs, groups: kinds, changes } = JSON.parse(document.getElementById("data").textContent);
const rows = runs.filter((run) => run.measured_s !== null).map((run) => ({
  measured: run.measured_s,
  predicted: run.predicted_s,
  low: run.low_s,
  high: run.high_s,
  at: new Date(run.measured_at),
  isWithin: run.is_within,
  name: `${run.name}\nmeasured ${significant(run.measured_s)} s, predicted ${significant(run.predicted_s)} s\n${run.measured_at.slice(0, 10)}`,
  place: `/runs/${encodeURIComponent(run.id)}`,
}));

if (rows.length) {
  draw("agreement", (width, colours) => agreement(rows, { width, colours }));
  draw("levels", (width, colours) => levels(kinds, { width, colours }));
  const over = rows.map(({ predicted, measured, low, high, ...row }) => ({ ...row, x: row.at, ratio: measured / predicted, low: low / predicted, high: high / predicted }));
  const marks = changes.map(({ since }) => ({ x: new Date(since) }));
  draw("over-time", (width, colours) => ratios(over, { x: dateAxis(width), changes: marks, width, colours }));
  legend("over-time", [
    { label: "80% interval of a prediction", fill: theme().soft },
    { label: "run within it", fill: theme().accent },
    ...(marks.length ? [{ label: "a kind of run became slower or faster", fill: theme().bad }] : []),
  ]);
}

// The axis ends beyond the first and the last run, so that no dot lies on its edge.
function dateAxis(width) {
  const [first, last] = d3.extent([...rows.map((row) => row.at), ...changes.map(({ since }) => new Date(since))]);
  const air = Math.max((last - first) / 20, 3_600_000);
  return {
    scale: { type: "utc", domain: [new Date(+first - air), new Date(+last + air)] },
    marks: [Plot.axisX({ ticks: Math.max(3, Math.floor(width / 110)), label: "When it was measured (UTC)", labelAnchor: "center", labelArrow: "none" })],
  };
}
