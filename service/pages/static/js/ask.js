// The pictures of an answer, drawn from the document that the API returns.
import { differences } from "./differences.js";
import { draw, legend } from "./figure.js";
import { intervals } from "./intervals.js";
import { EVENTS } from "./palette.js";
import { Pipeline } from "./pipeline.js";
import { significant } from "./numbers.js";
import { parts, termBar } from "./term_bar.js";

const MICRO_BATCHES = 16; // more of them make boxes that are too narrow to see
const { answer, comparison, time_terms: timeTerms, memory_terms: memoryTerms } = JSON.parse(document.getElementById("data").textContent);
const recommended = answer.layouts[answer.recommended].prediction;
const grounds = recommended.provenance?.terms ?? {};

function namedLayouts() {
  const positions = { recommended: answer.recommended, fastest: answer.fastest, simplest: answer.simplest, bold: answer.bolder?.layout };
  const names = new Map();
  for (const [name, position] of Object.entries(positions)) {
    if (position !== undefined && position !== null) names.set(position, [...(names.get(position) ?? []), name]);
  }
  return [...names].map(([position, given]) => ({ name: given.join(", "), ...answer.layouts[position].prediction }));
}

const layouts = namedLayouts();
const capacity = { value: recommended.usable_gib, label: `usable: ${significant(recommended.usable_gib)} GiB` };
draw("step-time", (width, colours) => intervals(
  layouts.map((each) => ({ name: each.name, value: each.step_time_s, low: each.step_time_low_s, high: each.step_time_high_s })),
  { unit: "Step time (s)", width, colours },
));
draw("memory", (width, colours) => intervals(
  layouts.map((each) => ({ name: each.name, value: each.needed_gib, low: each.needed_low_gib, high: each.needed_high_gib })),
  { unit: "Memory of a chip (GiB)", capacity, width, colours },
));
termBar("time-terms", timeTerms, recommended.time, grounds, { unit: "Seconds of a step (s)", interval: [recommended.step_time_low_s, recommended.step_time_high_s] });
termBar("memory-terms", memoryTerms, recommended.memory_gib, grounds, { unit: "Memory of a chip (GiB)", capacity, interval: [recommended.needed_low_gib, recommended.needed_high_gib] });
if (comparison) {
  const changed = parts(timeTerms, comparison.time, {});
  draw("comparison", (width, colours) => differences(changed, { unit: "Longer than recommended by (s)", width, colours }));
}
drawPipeline();

async function drawPipeline() {
  const figure = document.getElementById("pipeline");
  if (!figure) return;
  const response = await fetch(`/v1/recommendations/${answer.id}/timeline?micro_batches=${Math.max(MICRO_BATCHES, recommended.layout.pp)}`);
  if (!response.ok) {
    figure.querySelector(".chart").textContent = (await response.json()).detail;
    return;
  }
  const timeline = await response.json();
  figure.querySelector(".data .scroll").append(eventTable(timeline.events));
  let again = () => {};
  const pipeline = new Pipeline(timeline, () => again());
  again = draw("pipeline", (width, colours) => pipeline.picture(width, colours));
  figure.querySelector(".tools").prepend(...pipeline.tools());
  const names = new Set(timeline.events.map((event) => event.name));
  legend("pipeline", Object.entries(EVENTS).filter(([name]) => names.has(name)).map(([label, fill]) => ({ label, fill })));
}

function eventTable(events) {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  for (const name of ["Stage", "Operation", "Micro-batch", "Starts (s)", "Ends (s)"]) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = name;
    head.append(cell);
  }
  const body = table.createTBody();
  for (const event of events) {
    const row = body.insertRow();
    for (const value of [event.stage, event.name, event.micro_batch ?? "–", event.start_s.toFixed(4), event.end_s.toFixed(4)]) {
      row.insertCell().textContent = value;
    }
  }
  return table;
}
