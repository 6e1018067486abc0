// A pipeline as a Gantt chart: a row for each stage, a box for each operation. It zooms with
// buttons, with the wheel while Ctrl is held, and by dragging.
import { button } from "./figure.js";
import { EVENTS, on } from "./palette.js";

const MOST_ZOOM = 200;

export class Pipeline {
  constructor(timeline, redraw) {
    this.timeline = timeline;
    this.redraw = redraw;
    this.end = d3.max(timeline.events, (event) => event.end_s);
    this.shown = [0, this.end];
  }

  // Shows `factor` times as much, around a moment between 0 and 1 of what is shown.
  zoom(factor, at = 0.5) {
    const [from, to] = this.shown;
    const span = Math.min(Math.max((to - from) * factor, this.end / MOST_ZOOM), this.end);
    const centre = from + at * (to - from);
    this.#show(centre - at * span, span);
  }

  move(share) {
    const [from, to] = this.shown;
    this.#show(from + share * (to - from), to - from);
  }

  #show(from, span) {
    const start = Math.min(Math.max(from, 0), this.end - span);
    this.shown = [start, start + span];
    this.redraw();
  }

  tools() {
    return [
      button("−", "Zoom out", () => this.zoom(2)),
      button("+", "Zoom in", () => this.zoom(0.5)),
      button("←", "Earlier", () => this.move(-0.5)),
      button("→", "Later", () => this.move(0.5)),
    ];
  }

  picture(width, colours) {
    const { stages, events, micro_batches: shown, of_micro_batches: all } = this.timeline;
    const [from, to] = this.shown;
    const visible = events.filter((event) => event.end_s > from && event.start_s < to);
    const left = 58;
    const scale = (width - left - 8) / (to - from);
    const height = Math.max(22, Math.min(34, 320 / stages));
    const roomy = visible.filter((event) => event.micro_batch !== null && (event.end_s - event.start_s) * scale > 24 && height >= 20);
    const plot = Plot.plot({
      width,
      height: stages * height + 56,
      marginLeft: left,
      marginRight: 8,
      marginTop: 4,
      marginBottom: 40,
      style: { fontSize: "12px", background: "transparent", color: colours.ink, fontFamily: "inherit" },
      ariaLabel: `Operations of ${stages} pipeline stages over ${shown} of ${all} micro-batches`,
      x: { label: "Seconds since the step began (s)", domain: [from, to], nice: false, ticks: Math.max(3, Math.floor(width / 110)), labelAnchor: "center", labelArrow: "none" },
      y: { label: null, domain: d3.range(stages), tickFormat: (stage) => `stage ${stage}`, padding: 0.08 },
      marks: [
        Plot.barX(visible, { x1: (event) => Math.max(event.start_s, from), x2: (event) => Math.min(event.end_s, to), y: "stage", fill: (event) => EVENTS[event.name] ?? colours.soft, stroke: colours.paper, strokeWidth: 0.5, title: (event) => `stage ${event.stage}: ${event.name}${event.micro_batch === null ? "" : ` of micro-batch ${event.micro_batch}`}, ${((event.end_s - event.start_s) * 1e3).toPrecision(3)} ms` }),
        Plot.text(roomy, { x: (event) => (Math.max(event.start_s, from) + Math.min(event.end_s, to)) / 2, y: "stage", text: "micro_batch", fill: (event) => on(EVENTS[event.name] ?? colours.soft), pointerEvents: "none" }),
      ],
    });
    this.#listen(plot, left, width);
    return plot;
  }

  #listen(plot, left, width) {
    const share = (event) => Math.min(Math.max((event.clientX - plot.getBoundingClientRect().left - left) / (width - left), 0), 1);
    plot.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return; // a page that is scrolled past must not zoom
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, share(event));
    }, { passive: false });
    plot.addEventListener("pointerdown", (event) => {
      const began = share(event);
      window.addEventListener("pointerup", (ended) => {
        const moved = began - share(ended);
        if (Math.abs(moved) > 0.02) this.move(moved);
      }, { once: true });
    });
  }
}
