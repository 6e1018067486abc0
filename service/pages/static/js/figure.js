// Pictures: each is drawn into its figure, again whenever the width or the colours change, and can
// be taken away as SVG, and its table as CSV.
import { theme } from "./palette.js";

const SVG = "http://www.w3.org/2000/svg";

// Draws into the figure with this id. `render(width, theme)` returns an SVG element. Returns a
// function that draws it once more.
export function draw(id, render) {
  const figure = document.getElementById(id);
  if (!figure) return () => {};
  const chart = figure.querySelector(".chart");
  let width = 0;
  const again = () => {
    width = Math.floor(chart.clientWidth);
    if (width < 40) return;
    const picture = render(width, theme());
    chart.replaceChildren(asImage(picture));
  };
  new ResizeObserver(() => Math.floor(chart.clientWidth) !== width && again()).observe(chart);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  again();
  addTools(figure, id);
  return again;
}

// Returns a picture that is one image to a screen reader, with the label of the whole: Plot labels
// each of its marks too, which elements without a role may not have.
function asImage(picture) {
  picture.setAttribute("role", "img");
  for (const mark of picture.querySelectorAll("g[aria-label]")) {
    mark.dataset.mark = mark.getAttribute("aria-label");
    mark.removeAttribute("aria-label");
    mark.removeAttribute("aria-description");
  }
  return picture;
}

// Writes the legend of a figure: entries are {label, fill, mark}; one without a fill is words alone.
export function legend(id, entries) {
  const place = document.querySelector(`#${id} .legend`);
  place.replaceChildren(...entries.map(({ label, fill, mark }) => {
    const entry = document.createElement("span");
    if (fill) entry.append(swatch(fill, mark));
    entry.append(label);
    return entry;
  }));
}

function swatch(fill, mark) {
  const made = shape("svg", { viewBox: "0 0 14 14", "aria-hidden": "true" });
  made.append(shape("rect", { width: 14, height: 14, rx: 3, fill }));
  if (mark) made.append(mark());
  return made;
}

export function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  return made;
}

function addTools(figure, id) {
  const tools = figure.querySelector(".tools");
  if (!tools || tools.childElementCount) return;
  tools.append(
    button("SVG", `Download the picture as SVG`, () => download(`${id}.svg`, "image/svg+xml", svgText(figure))),
  );
  if (tableOf(figure)) {
    tools.append(
      button("CSV", `Download the table as CSV`, () => download(`${id}.csv`, "text/csv", csvText(figure))),
    );
  }
}

export function button(text, label, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

function svgText(figure) {
  const copy = figure.querySelector(".chart svg").cloneNode(true);
  copy.setAttribute("xmlns", SVG);
  const { ink, paper, font } = theme();
  copy.style.cssText = `color: ${ink}; background: ${paper}; font: 12px ${font}`;
  return new XMLSerializer().serializeToString(copy);
}

// The table that a picture shows: its own, or the one that it names.
function tableOf(figure) {
  return figure.dataset.table ? document.getElementById(figure.dataset.table) : figure.querySelector("table");
}

function cellText(cell) {
  const copy = cell.cloneNode(true);
  for (const more of copy.querySelectorAll(".sub")) more.prepend("; ");
  return copy.textContent;
}

// A cell that begins like a formula is quoted as text, so that no spreadsheet runs it.
function csvText(figure) {
  const cell = (text) => `"${text.trim().replace(/\s+/g, " ").replace(/^([=@])/, "'$1").replaceAll('"', '""')}"`;
  return [...tableOf(figure).rows]
    .map((row) => [...row.cells].map((each) => cell(cellText(each))).join(","))
    .join("\r\n");
}

function download(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
