// Loads the scripts that draw a page's pictures once the page has been painted: to read d3 and Plot
// takes a browser longer than to lay out and paint all the rest.
const { pictures } = document.querySelector("script[data-pictures]").dataset;
const LIBRARIES = ["d3.min.js", "plot.umd.min.js"]; // in this order: Plot needs d3

function run(library) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL(`../vendor/${library}`, import.meta.url);
    script.async = false;
    script.addEventListener("load", resolve);
    script.addEventListener("error", reject);
    document.head.append(script);
  });
}

// An animation frame comes just before a paint, and a timer that is set in it just after.
requestAnimationFrame(() => setTimeout(async () => {
  await Promise.all(LIBRARIES.map(run));
  await import(`./${pictures}.js`);
}));
