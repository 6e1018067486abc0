// How wide a text of a picture is. The browser measures it, since nobody knows which of the fonts
// that a page names a machine has.
import { theme } from "./palette.js";

const pen = document.createElement("canvas").getContext("2d");

// Returns pixels of a text at the 12 px of pictures, in their widest weight.
export function textWidth(text) {
  pen.font = `600 12px ${theme().font}`;
  return pen.measureText(text).width;
}
