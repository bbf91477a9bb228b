// Values over calls and nodes: what they are for an item, as text and as a colour.

import { amountColor, CATEGORY_COUNT, categoryColor, differenceColor, type Theme } from "./colors.ts";
import type { Overlay } from "./data.ts";
import { measured } from "./format.ts";
import type { Item } from "./items.ts";
import type { Model } from "./model.ts";

const ADDITIVE = new Set(["seconds", "bytes", "count"]);
// Amounts that differ by more than this factor are on a logarithmic scale.
const LOGARITHMIC = 1_000;

export class ActiveOverlay {
  readonly low: number;
  readonly high: number;
  readonly logarithmic: boolean;

  constructor(
    readonly overlay: Overlay,
    private readonly theme: Theme,
  ) {
    let low = Infinity;
    let high = -Infinity;
    let smallest = Infinity;
    const include = (value: number | null | undefined): void => {
      if (value === null || value === undefined || !Number.isFinite(value)) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
      if (value > 0) smallest = Math.min(smallest, value);
    };
    const { calls, totals, nodes, scale } = overlay;
    calls.forEach(include);
    nodes?.forEach(include);
    // The root's total would leave one colour for everything else.
    if (ADDITIVE.has(overlay.unit)) totals?.slice(1).forEach(include);
    else totals?.forEach(include);
    if (low > high) [low, high] = [0, 1];
    if (scale === "diverging") {
      high = Math.max(Math.abs(low), Math.abs(high)) || 1;
      low = -high;
    }
    this.logarithmic = scale === "sequential" && low >= 0 && high / smallest > LOGARITHMIC && !ADDITIVE.has(overlay.unit);
    if (this.logarithmic) low = smallest;
    else if (scale === "sequential" && low > 0 && low < high / 2) low = 0;
    this.low = low;
    this.high = high;
  }

  get isCategory(): boolean {
    return this.overlay.scale === "category";
  }

  /** The value of a call: with the calls inside it where the overlay has totals. */
  ofCall(call: number): number | null {
    return this.overlay.totals?.[call] ?? this.overlay.calls[call] ?? null;
  }

  ofNode(node: number): number | null {
    return this.overlay.nodes?.[node] ?? null;
  }

  ofItem(item: Item): number | null {
    if (item.kind === "node") return this.ofNode(item.node);
    if (item.kind === "call") return this.ofCall(item.call);
    const parts = item.members.length ? item.members.map((member) => this.ofItem(member)) : item.nodes.map((n) => this.ofNode(n));
    return this.combined(parts);
  }

  /** One value for several: their sum where values add up, or else the worst. */
  combined(parts: (number | null)[]): number | null {
    const values = parts.filter((value) => value !== null);
    if (!values.length) return null;
    if (this.isCategory) return values.every((value) => value === values[0]) ? values[0] : null;
    if (ADDITIVE.has(this.overlay.unit)) return values.reduce((sum, value) => sum + value, 0);
    return this.overlay.unit === "share" || this.overlay.unit === ""
      ? Math.min(...values)
      : values.reduce((worst, value) => (Math.abs(value) > Math.abs(worst) ? value : worst));
  }

  text(value: number | null): string {
    if (value === null) return "";
    return this.isCategory ? (this.overlay.categories?.[value] ?? "") : measured(value, this.overlay.unit);
  }

  color(value: number | null): string | null {
    if (value === null) return null;
    if (this.isCategory) return categoryColor(value, this.theme);
    if (this.overlay.scale === "diverging") return differenceColor(this.fraction(value), this.theme);
    return amountColor(this.fraction(value), this.theme);
  }

  fraction(value: number): number {
    if (this.logarithmic) {
      return Math.log(Math.max(value, this.low) / this.low) / Math.log(this.high / this.low);
    }
    return this.high > this.low ? (value - this.low) / (this.high - this.low) : 0.5;
  }
}

/** An overlay of the page itself: the most frequent classes, so that equal modules look equal. */
export function classOverlay(model: Model): Overlay {
  const weight = new Map<string, number>();
  for (const call of model.data.calls.slice(1)) {
    const name = model.data.modules[call.module].class;
    if (call.nodes) weight.set(name, (weight.get(name) ?? 0) + call.nodes);
  }
  const names = [...weight.keys()].sort((a, b) => weight.get(b)! - weight.get(a)!);
  const shown = names.slice(0, CATEGORY_COUNT - 1);
  const position = new Map(shown.map((name, i) => [name, i + 1]));
  return {
    id: "class",
    title: "Class",
    description: "The class of the module.",
    scale: "category",
    unit: "",
    categories: ["other classes", ...shown],
    calls: model.data.calls.map((call, i) => (i === 0 ? null : (position.get(model.data.modules[call.module].class) ?? 0))),
  };
}
