// The names of pins on a map: beside their marks where there is room, and else as numbers, which a
// legend explains. What lies on no free place shares the number of the nearest that has one.
import { textWidth } from "./text_width.js";

const AIR = 5; // between a mark and its label

const overlap = (one, other) => one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;

// Returns the boxes that a text may have around a mark, the best first.
function around([x, y], radius, text) {
  const wide = textWidth(text);
  const reach = radius + AIR;
  const box = (left, top) => ({ left, right: left + wide, top, bottom: top + 14, text, x: left + wide / 2, y: top + 7 });
  return [
    box(x + reach, y - 7),
    box(x - reach - wide, y - 7),
    box(x - wide / 2, y - reach - 12),
    box(x - wide / 2, y + reach - 2),
  ];
}

// pins: [{text, radius}], the most important first. place: the pixels of a pin. taken: boxes that no label may
// cover. area: the box within which labels stay. Returns {labels: [{text, x, y, isNumber}], numbered:
// [{number, texts}]}.
export function labelled(pins, { place, taken, area }) {
  const boxOf = (pin) => {
    const [x, y] = place(pin);
    return { left: x - pin.radius, right: x + pin.radius, top: y - pin.radius, bottom: y + pin.radius };
  };
  const boxes = [...taken, ...pins.map(boxOf)];
  const isWithin = (box) => box.left > area.left && box.right < area.right && box.top > area.top && box.bottom < area.bottom;
  const labels = [];
  const put = (candidates, isNumber) => {
    const box = candidates.find((one) => isWithin(one) && !boxes.some((other) => overlap(one, other)));
    if (!box) return false;
    boxes.push(box);
    labels.push({ text: box.text, x: box.x, y: box.y, isNumber });
    return true;
  };
  const unnamed = pins.filter((pin) => !put(around(place(pin), pin.radius, pin.text).slice(0, 2), false));
  const numbered = [];
  const homeless = [];
  for (const pin of unnamed) {
    const number = numbered.length + 1;
    if (put(around(place(pin), pin.radius, String(number)), true)) numbered.push({ number, pin, texts: [pin.text] });
    else homeless.push(pin);
  }
  for (const pin of homeless) {
    const [x, y] = place(pin);
    const distance = ({ pin: other }) => Math.hypot(place(other)[0] - x, place(other)[1] - y);
    d3.least(numbered, distance)?.texts.push(pin.text);
  }
  return { labels, numbered: numbered.map(({ number, texts }) => ({ number, texts })) };
}
