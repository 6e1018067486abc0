// Errors of versions of a profile on runs that they did not see, before and after, from the API.
import { draw, legend } from "./figure.js";
import { percent } from "./numbers.js";
import { theme } from "./palette.js";

const HEIGHT = 44; // of a row: its name, two dots, and air
const MOST = 12; // versions, the newest: the table has the others

const { versions } = JSON.parse(document.getElementById("data").textContent);
const rows = versions.slice(0, MOST);

function errors(width, colours) {
  const title = (row) => `version ${row.version}${row.is_active ? ", active" : ""}`;
  const colour = (row) => (row.after > row.before ? colours.bad : colours.accent);
  const dot = { y: (_, i) => i, r: 6, strokeWidth: 2, dy: 9 };
  return Plot.plot({
    width,
    height: rows.length * HEIGHT + 56,
    marginLeft: 8, marginRight: 16, marginTop: 8, marginBottom: 48,
    style: { fontSize: "12px", background: "transparent", color: colours.ink, fontFamily: "inherit" },
    ariaLabel: `Median error of step times: ${rows.map((row) => `${title(row)}, ${percent(row.before)} before and ${percent(row.after)} after`).join("; ")}`,
    x: { label: "Median error of step times (%)", percent: true, domain: [0, 106 * d3.max(rows, (row) => Math.max(row.before, row.after, 0.01))], grid: true, ticks: Math.max(3, Math.floor(width / 90)), labelAnchor: "center", labelArrow: "none" },
    y: { axis: null, type: "point", domain: d3.range(rows.length), padding: 0.5 },
    marks: [
      Plot.ruleY(rows, { y: (_, i) => i, x1: "before", x2: "after", stroke: colour, strokeWidth: 3, dy: 9 }),
      Plot.dot(rows, { ...dot, x: "before", fill: colours.paper, stroke: colour }),
      Plot.dot(rows, { ...dot, x: "after", fill: colour, stroke: colours.paper }),
      Plot.text(rows, { y: (_, i) => i, frameAnchor: "left", text: title, dx: 8, dy: -9, textAnchor: "start", fill: colours.ink, stroke: colours.paper, strokeWidth: 4 }),
      Plot.ruleX([0], { stroke: colours.soft }),
    ],
  });
}

draw("errors", errors);
legend("errors", [
  { label: "after, where the error falls", fill: theme().accent },
  ...(rows.some((row) => row.after > row.before) ? [{ label: "after, where it grows", fill: theme().bad }] : []),
  { label: "A hollow dot is the error before." },
]);
