// What one layout takes longer than another, term by term.
export function differences(parts, { unit, width, colours }) {
  const most = d3.max(parts, (part) => Math.abs(part.value)) || 1;
  return Plot.plot({
    width,
    height: parts.length * 30 + 60,
    marginLeft: Math.min(170, width * 0.42),
    marginRight: 16,
    marginBottom: 40,
    style: { fontSize: "12px", background: "transparent", color: colours.ink, fontFamily: "inherit" },
    ariaLabel: `${unit}: ${parts.map((part) => `${part.label} ${part.value.toPrecision(3)}`).join(", ")}`,
    x: { label: unit, domain: [-most * 1.05, most * 1.05], ticks: Math.max(3, Math.floor(width / 140)), grid: true, labelAnchor: "center", labelArrow: "none" },
    y: { label: null, domain: parts.map((part) => part.label) },
    marks: [
      Plot.barX(parts, { x: "value", y: "label", fill: "fill", insetTop: 4, insetBottom: 4 }),
      Plot.ruleX([0], { stroke: colours.soft }),
    ],
  });
}
