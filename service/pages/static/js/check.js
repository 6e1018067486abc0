// The pictures of a check, drawn from the document that the API returns.
import { termBar } from "./term_bar.js";
import { significant } from "./numbers.js";

const { check, time_terms: timeTerms, memory_terms: memoryTerms } = JSON.parse(document.getElementById("data").textContent);

if (check.prediction) {
  const { prediction, fits } = check;
  termBar("time-terms", timeTerms, prediction.time, {}, { unit: "Seconds of a step (s)", interval: [prediction.step_time_low_s, prediction.step_time_high_s] });
  termBar("memory-terms", memoryTerms, prediction.memory_gib, {}, {
    unit: "Memory of a chip (GiB)",
    capacity: { value: fits.usable_gib, label: `usable: ${significant(fits.usable_gib)} GiB` },
    interval: [fits.needed_low_gib, fits.needed_high_gib],
  });
}
