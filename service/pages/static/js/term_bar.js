// The terms of a prediction as one bar, with its legend, which has the unit that the axis has.
import { additiveBar, hatching } from "./additive_bar.js";
import { draw, legend } from "./figure.js";
import { TERMS } from "./palette.js";
import { significant } from "./numbers.js";

// Returns the terms that are not zero. `grounds` says what each rests on, where an answer does.
export function parts(terms, values, grounds) {
  return terms
    .filter(({ field }) => values[field])
    .map(({ field, label }) => ({ field, label, value: values[field], fill: TERMS[field], ground: grounds[field]?.ground }));
}

export function termBar(id, terms, values, grounds, options) {
  const drawn = parts(terms, values, grounds);
  draw(id, (width, colours) => additiveBar(id, drawn, { width, colours, ...options }));
  const [, symbol] = options.unit.match(/\((.+)\)$/);
  legend(id, drawn.map(({ label, fill, value, ground }) => ({
    label: `${label} ${significant(value)} ${symbol}`,
    fill,
    mark: ground && ground !== "measured" ? () => hatching(ground) : null,
  })));
}
