// What makes forms quicker: files dropped onto a field, and texts copied at a click.
import { button } from "./figure.js";

const MOST_BYTES = 200_000; // a config.json or a script has some thousand

for (const field of document.querySelectorAll("[data-drop]")) {
  field.addEventListener("dragover", (event) => {
    event.preventDefault();
    field.classList.add("over");
  });
  field.addEventListener("dragleave", () => field.classList.remove("over"));
  field.addEventListener("drop", async (event) => {
    event.preventDefault();
    field.classList.remove("over");
    const file = event.dataTransfer.files[0];
    if (file && file.size <= MOST_BYTES) field.value = await file.text();
  });
}

for (const block of document.querySelectorAll("[data-copy]")) {
  const copy = button("Copy", "Copy the text below", async () => {
    await navigator.clipboard.writeText(block.querySelector("pre").textContent);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 2000);
  });
  block.querySelector(".code-head").append(copy);
}

// Empty fields say nothing, and would only make the URL long.
for (const form of document.querySelectorAll("form[method=get]")) {
  form.addEventListener("submit", () => {
    for (const field of form.elements) field.disabled = field.name !== "" && field.value === "";
    window.addEventListener("pageshow", () => {
      for (const field of form.elements) field.disabled = false;
    }, { once: true });
  });
}
