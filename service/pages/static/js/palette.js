// Colours of pictures. Each family of terms has a hue, chosen so that the common kinds of colour
// blindness keep them apart; terms of a family differ in lightness, which everybody sees.
export const TERMS = {
  compute_s: "#2b66a8", recompute_s: "#8fbbe4",
  tensor_s: "#b4500a", context_s: "#f7d3a8", expert_s: "#e0812a", data_s: "#f3b06a",
  pipeline_s: "#7f3a08", offload_s: "#fbe6cc",
  bubble_s: "#77828f", jitter_s: "#b7bfc9",
  optimizer_s: "#1b7a63", fixed_s: "#8ccdb9",
  parameters_gib: "#2b66a8", gradients_gib: "#5e93c9", optimizer_gib: "#a5c9ea",
  activations_gib: "#b4500a", logits_gib: "#f3b06a",
  context_gib: "#77828f", fragmentation_gib: "#b7bfc9",
};
export const EVENTS = {
  forward: "#8fbbe4", backward: "#2b66a8",
  "input gradients": "#2b66a8", "weight gradients": "#1b7a63",
  data: "#f3b06a", optimizer: "#8ccdb9", fixed: "#77828f", jitter: "#b7bfc9",
};

// Returns the colours of text, lines and the page as they are now, light or dark. Pictures hold
// plain values, so that a downloaded one looks the same elsewhere.
export function theme() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    ink: value("ink"), soft: value("soft"), line: value("line"), paper: value("paper"),
    accent: value("accent"), bad: value("bad"), font: getComputedStyle(document.body).fontFamily,
  };
}

// Returns the one of black and white that is read better on a colour.
export function on(colour) {
  const { r, g, b } = d3.rgb(colour);
  return (0.299 * r + 0.587 * g + 0.114 * b) > 140 ? "#10161d" : "#ffffff";
}
