// The picture of published runs, drawn from the document that the API returns.
import { draw, legend } from "./figure.js";
import { timeAxis } from "./log_axis.js";
import { significant } from "./numbers.js";
import { theme } from "./palette.js";
import { ratios } from "./ratios.js";

const { runs } = JSON.parse(document.getElementById("data").textContent);
const rows = runs
  .map((run, i) => ({ run, place: `#run-${i}` }))
  .filter(({ run }) => run.measured.step_time_s !== null)
  .map(({ run, place }) => {
    const { step_time_s: predicted, step_time_low_s: low, step_time_high_s: high } = run.predicted;
    const measured = run.measured.step_time_s;
    const name = `${run.model.name ?? run.model}, ${run.cluster.num_chips} × ${run.cluster.chip ?? run.cluster.preset}\nmeasured ${significant(measured)} s, predicted ${significant(predicted)} s\n${run.source.title}`;
    return { x: predicted, ratio: measured / predicted, low: low / predicted, high: high / predicted, isWithin: run.within_interval, name, place };
  });

if (rows.length) {
  const times = rows.map((row) => row.x);
  draw("ratios", (width, colours) => ratios(rows, { x: timeAxis("x", times, "Predicted step time (s)", width), width, colours }));
  legend("ratios", [
    { label: "80% interval of a prediction", fill: theme().soft },
    { label: "run within it", fill: theme().accent },
  ]);
}
