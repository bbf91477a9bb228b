// The tree of modules: an ARIA tree with one row per visible module, and a bar for its size or its overlay value.

import type { App } from "./app.ts";
import { h } from "./dom.ts";
import type { ActiveOverlay } from "./overlays.ts";
import { sizeText } from "./sizes.ts";
import type { Selection, State } from "./state.ts";
import { VirtualList } from "./virtual_list.ts";

const ROW = 28;
// Bars shorter than this share would be dots.
const MIN_BAR = 0.008;

export class TreeView {
  readonly element: HTMLElement;
  private readonly expanded = new Set<number>();
  private readonly list: VirtualList;
  private rows: { module: number; depth: number }[] = [];
  private focused = 0;
  private values: { text: string[]; share: number[]; color: (string | null)[] } | null = null;

  constructor(private readonly app: App) {
    this.element = h("div", { class: "tree", role: "tree", "aria-label": "Modules", keydown: (event: KeyboardEvent) => this.onKey(event) });
    this.list = new VirtualList(this.element, this.element, ROW, (index) => this.row(index));
    this.expandFirst();
    this.rebuild();
  }

  update(state: State, before: State | null): void {
    if (!before || state.overlay !== before.overlay || state.size !== before.size) this.values = null;
    const module = this.app.selectedModule();
    if (!before || state.selection !== before.selection) {
      if (module >= 0) this.expandTo(module);
      this.rebuild();
      const at = this.rows.findIndex((row) => row.module === module);
      if (at >= 0) {
        this.focused = module;
        this.list.scrollTo(at);
      }
    }
    this.list.refresh();
  }

  redraw(): void {
    this.values = null;
    this.list.refresh();
  }

  focus(): void {
    const at = this.rows.findIndex((row) => row.module === this.focused);
    this.focusRow(Math.max(at, 0));
  }

  private expandFirst(): void {
    let shown = 1;
    let level = [0];
    while (level.length && shown < 24) {
      for (const module of level) this.expanded.add(module);
      level = level.flatMap((module) => this.app.model.childModules(module));
      shown += level.length;
    }
  }

  private expandTo(module: number): void {
    const { modules } = this.app.model.data;
    for (let at = modules[module].parent; at >= 0; at = modules[at].parent) this.expanded.add(at);
  }

  private rebuild(): void {
    const { model } = this.app;
    const rows: { module: number; depth: number }[] = [];
    const waiting = [{ module: 0, depth: 0 }];
    while (waiting.length) {
      const row = waiting.pop()!;
      rows.push(row);
      if (!this.expanded.has(row.module)) continue;
      const children = model.childModules(row.module);
      for (let i = children.length - 1; i >= 0; i--) waiting.push({ module: children[i], depth: row.depth + 1 });
    }
    this.rows = rows;
    this.list.setCount(rows.length);
  }

  private row(index: number): HTMLElement {
    const { app } = this;
    const { model } = app;
    const { module, depth } = this.rows[index];
    const info = model.data.modules[module];
    const children = model.childModules(module);
    const isOpen = this.expanded.has(module);
    const selected = app.selectedModule() === module;
    const name = depth === 0 ? info.class : localPath(model.data.modules[info.parent].path, info.path);
    const calls = model.callsOfModule(module);
    const values = this.moduleValues();
    const hit = calls.some((call) => app.found.calls.has(call));
    const inside = calls.reduce((sum, call) => sum + (app.foundInCalls.get(call) ?? 0), 0);
    const bar = h("span", { class: "bar" });
    bar.style.setProperty("--share", String(values.share[module] < MIN_BAR ? 0 : values.share[module]));
    if (values.color[module]) bar.style.setProperty("--bar", values.color[module]!);
    const element = h(
      "div",
      {
        class: `tree-row${selected ? " selected" : ""}${hit ? " hit" : ""}${info.nodes === 0 ? " empty" : ""}`,
        role: "treeitem",
        "aria-level": depth + 1,
        "aria-expanded": children.length ? String(isOpen) : null,
        "aria-selected": String(selected),
        tabindex: module === this.focused ? 0 : -1,
        title: `${info.path || "(root)"} · ${info.class}`.slice(0, 400),
        click: (event: MouseEvent) => this.onClick(event, module, index),
      },
      h("span", { class: `twist${children.length ? "" : " none"}${isOpen ? " open" : ""}`, "aria-hidden": "true" }),
      h("span", { class: "name" }, name.slice(0, 200)),
      h("span", { class: "class" }, depth === 0 ? "" : info.class.slice(0, 200)),
      info.calls > 1 && h("span", { class: "times" }, `×${info.calls}`),
      inside > 0 && h("span", { class: "found" }, inside),
      h("span", { class: "amount" }, values.text[module]),
      bar,
    );
    element.style.setProperty("--depth", String(depth));
    return element;
  }

  /** The text and the bar of each module: of the overlay where it has one value, or else of the size. */
  private moduleValues(): { text: string[]; share: number[]; color: (string | null)[] } {
    if (this.values) return this.values;
    const { app } = this;
    const { model } = app;
    const size = app.size();
    const totals = app.totals(size);
    const overlay = app.overlay();
    const whole = totals[0] || 1;
    const text: string[] = [];
    const share: number[] = [];
    const color: (string | null)[] = [];
    model.data.modules.forEach((_, module) => {
      const calls = model.callsOfModule(module);
      const amount = calls.length ? calls.reduce((sum, call) => sum + totals[call], 0) : this.sumBelow(module, totals);
      const own = overlay ? this.overlayValue(overlay, module) : null;
      text.push(overlay && overlay.overlay.id !== "class" ? overlay.text(own) : amount ? sizeText(size, amount) : "");
      share.push(Math.min(amount / whole, 1));
      color.push(overlay?.color(own) ?? null);
    });
    return (this.values = { text, share, color });
  }

  /** The value of the module's calls; for a module that is never called, of the calls in it. */
  private overlayValue(overlay: ActiveOverlay, module: number): number | null {
    const { model } = this.app;
    const calls = model.callsOfModule(module);
    const values = calls.length
      ? calls.map((call) => overlay.ofCall(call))
      : model.childModules(module).map((child) => this.overlayValue(overlay, child));
    return overlay.combined(values);
  }

  /** For a module that is never called: the sum of the calls in it. */
  private sumBelow(module: number, totals: number[]): number {
    let sum = 0;
    for (const child of this.app.model.childModules(module)) {
      const calls = this.app.model.callsOfModule(child);
      sum += calls.length ? calls.reduce((total, call) => total + totals[call], 0) : this.sumBelow(child, totals);
    }
    return sum;
  }

  private onClick(event: MouseEvent, module: number, index: number): void {
    if ((event.target as Element).classList.contains("twist")) this.toggle(module);
    else this.choose(module);
    this.focusRow(index);
  }

  private choose(module: number): void {
    this.focused = module;
    const call = this.app.model.callsOfModule(module)[0];
    const selection: Selection = call === undefined ? { type: "module", module } : { type: "call", call };
    this.app.reveal(selection);
  }

  private toggle(module: number): void {
    if (!this.expanded.delete(module)) this.expanded.add(module);
    this.rebuild();
  }

  private focusRow(index: number): void {
    const row = this.rows[Math.min(Math.max(index, 0), this.rows.length - 1)];
    this.focused = row.module;
    this.list.scrollTo(this.rows.indexOf(row));
    this.list.refresh();
    this.element.querySelector<HTMLElement>('[tabindex="0"]')?.focus({ preventScroll: true });
  }

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.rows.findIndex((row) => row.module === this.focused);
    const { module, depth } = this.rows[Math.max(at, 0)];
    const children = this.app.model.childModules(module);
    const isOpen = this.expanded.has(module) && children.length > 0;
    switch (event.key) {
      case "ArrowDown":
        this.focusRow(at + 1);
        break;
      case "ArrowUp":
        this.focusRow(at - 1);
        break;
      case "Home":
        this.focusRow(0);
        break;
      case "End":
        this.focusRow(this.rows.length - 1);
        break;
      case "ArrowRight":
        if (!isOpen && children.length) this.toggle(module);
        this.focusRow(isOpen ? at + 1 : at);
        break;
      case "ArrowLeft":
        if (isOpen) {
          this.toggle(module);
          this.focusRow(at);
        } else if (depth > 0) {
          this.focusRow(this.rows.findLastIndex((row, i) => i < at && row.depth < depth));
        }
        break;
      case "Enter":
      case " ":
        this.choose(module);
        this.focusRow(this.rows.findIndex((row) => row.module === module));
        break;
      default:
        return;
    }
    event.preventDefault();
    event.stopPropagation();
  }
}

function localPath(outer: string, path: string): string {
  return outer && path.startsWith(outer + ".") ? path.slice(outer.length + 1) : path;
}
