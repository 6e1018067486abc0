// Hours and dollars of places to run, drawn from the document that the API returns.
import { draw, legend } from "./figure.js";
import { intervals } from "./intervals.js";
import { significant } from "./numbers.js";
import { theme } from "./palette.js";

const { choices, names, objective } = JSON.parse(document.getElementById("data").textContent);
const { deadline_hours: deadline, budget_usd: budget } = objective;

function places(id, member, unit, capacity) {
  const rows = choices
    .map((choice, i) => ({ name: names[i], value: choice[member], low: choice[`${member}_low`], high: choice[`${member}_high`], misses: !choice.meets }))
    .filter((row) => row.value !== null);
  if (!rows.length) return;
  draw(id, (width, colours) => intervals(rows, { unit, capacity, width, colours }));
  if (!deadline && !budget) return;
  legend(id, [{ label: "keeps the limits", fill: theme().accent }, { label: "A hollow dot misses one, or is less sure." }]);
}

places("hours", "hours", "Hours to train (h)", deadline && { value: deadline, label: `deadline: ${significant(deadline)} h` });
places("dollars", "usd", "Cost of the chips that are held (USD)", budget && { value: budget, label: `budget: $${significant(budget)}` });
