// The legend of the chosen overlay: its scale with values, or its categories.

import type { App } from "./app.ts";
import { h, replaceChildren } from "./dom.ts";
import { measured } from "./format.ts";

const STEPS = 24;

export function drawLegend(app: App, into: HTMLElement): void {
  const { view } = app.state;
  const overlay = app.overlay() ?? (view === "map" ? app.overlay("class") : null);
  const shown = overlay !== null && view !== "table";
  document.body.classList.toggle("has-legend", shown);
  into.hidden = !shown;
  if (!shown) return;
  const { title, description, categories, unit, notes } = overlay.overlay;
  const heading = h("div", { class: "legend-title", title: description }, title);
  if (overlay.isCategory) {
    const used = new Set([...overlay.overlay.calls, ...(overlay.overlay.totals ?? []), ...(overlay.overlay.nodes ?? [])]);
    const entries = (categories ?? []).map((name, i) => {
      if (!used.has(i)) return null;
      const swatch = h("span", { class: "swatch" });
      swatch.style.background = overlay.color(i)!;
      return h("span", { class: "legend-entry" }, swatch, name.slice(0, 60));
    });
    replaceChildren(into, heading, h("div", { class: "legend-entries" }, ...entries));
  } else {
    const ramp = h("div", { class: "ramp", role: "img", "aria-label": `from ${measured(overlay.low, unit)} to ${measured(overlay.high, unit)}` });
    for (let i = 0; i < STEPS; i++) {
      const step = h("span");
      step.style.background = overlay.color(valueAt(overlay, i / (STEPS - 1)))!;
      ramp.append(step);
    }
    const ends = [0, 0.5, 1].map((fraction) => h("span", {}, measured(valueAt(overlay, fraction), unit)));
    replaceChildren(into, heading, h("div", { class: "ramp-box" }, ramp, h("div", { class: "ramp-ends" }, ...ends)));
  }
  const about = [description, ...(notes ?? [])].join(" ");
  into.append(h("div", { class: "legend-about", title: about }, about));
}

function valueAt(overlay: { low: number; high: number; logarithmic: boolean }, fraction: number): number {
  const { low, high, logarithmic } = overlay;
  return logarithmic ? low * (high / low) ** fraction : low + (high - low) * fraction;
}
