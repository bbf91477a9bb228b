// The table of modules, with the columns of `modelexport analyze`: sortable, filtered by the search.

import type { App } from "./app.ts";
import type { Module } from "./data.ts";
import { h, replaceChildren } from "./dom.ts";
import { bytes, grouped, shortened } from "./format.ts";
import type { State } from "./state.ts";
import { VirtualList } from "./virtual_list.ts";

interface Column {
  title: string;
  numeric: boolean;
  value(module: Module): number | string | null;
  text(module: Module): string;
}

const ROW = 28;

function number(title: string, value: (module: Module) => number): Column {
  return { title, numeric: true, value, text: (module) => grouped(value(module)) };
}

const COLUMNS: Column[] = [
  { title: "Path", numeric: false, value: (m) => m.path, text: (m) => shortened(m.path, 36) || "(root)" },
  { title: "Class", numeric: false, value: (m) => m.class, text: (m) => m.class },
  number("Calls", (m) => m.calls),
  number("Own nodes", (m) => m.ownNodes),
  number("Nodes", (m) => m.nodes),
  number("Parameters", (m) => m.totalParameters),
  { title: "Bytes", numeric: true, value: (m) => m.parameterBytes, text: (m) => bytes(m.parameterBytes) },
  {
    title: "Confidence",
    numeric: true,
    value: (m) => m.lowestConfidence,
    text: (m) => (m.lowestConfidence === null ? "" : m.lowestConfidence.toFixed(2)),
  },
  {
    title: "Kinds",
    numeric: false,
    value: (m) => kindsText(m),
    text: (m) => kindsText(m),
  },
];

export class TableView {
  readonly element: HTMLElement;
  private readonly heads: HTMLElement;
  private readonly status: HTMLElement;
  private readonly list: VirtualList;
  private rows: number[] = [];
  private column = -1; // -1: the order of the modules
  private descending = false;
  private focused = 0;
  private built = false;

  constructor(private readonly app: App) {
    this.heads = h("div", { class: "table-row head", role: "row" });
    this.status = h("div", { class: "table-status", role: "status" });
    const body = h("div", { class: "table-body", role: "rowgroup", keydown: (event: KeyboardEvent) => this.onKey(event) });
    const head = h("div", { role: "rowgroup", class: "table-head" }, this.heads);
    const scroller = h("div", { class: "table-scroll" }, h("div", { class: "table", role: "table", "aria-label": "Modules" }, head, body));
    this.element = h("div", { class: "table-view" }, this.status, scroller);
    this.list = new VirtualList(scroller, body, ROW, (index) => this.row(index));
  }

  update(state: State, before: State | null): void {
    if (state.view !== "table") {
      if (!before || state.query !== before.query) this.built = false;
      return;
    }
    if (!this.built || !before || state.query !== before.query) this.rebuild();
    else this.list.refresh();
  }

  focus(): void {
    this.focusRow(this.focused);
  }

  /** Every row, for printing. */
  printed(): HTMLElement {
    return h("div", { class: "table printed" }, this.heads.cloneNode(true), ...this.rows.map((_, i) => this.row(i)));
  }

  private rebuild(): void {
    this.built = true;
    const { app } = this;
    const { modules } = app.model.data;
    const filtering = app.state.query.trim() !== "" && app.found.count > 0;
    this.rows = modules.map((_, i) => i).filter((module) => !filtering || this.isFound(module));
    const column = COLUMNS[this.column];
    if (column) {
      const direction = this.descending ? -1 : 1;
      const values = modules.map((module) => column.value(module));
      this.rows.sort((a, b) => direction * compare(values[a], values[b]) || a - b);
    }
    const count = `${grouped(this.rows.length)} of ${grouped(modules.length)} modules`;
    this.status.textContent = filtering ? `${count} are or contain what the search found` : count;
    this.drawHeads();
    this.list.setCount(this.rows.length);
  }

  private isFound(module: number): boolean {
    const { model, found, foundInCalls } = this.app;
    return model.callsOfModule(module).some((call) => found.calls.has(call) || foundInCalls.has(call));
  }

  private drawHeads(): void {
    const heads = COLUMNS.map((column, i) => {
      const sorted = i === this.column;
      const direction = this.descending ? "descending" : "ascending";
      return h(
        "div",
        { class: column.numeric ? "cell numeric" : "cell", role: "columnheader", "aria-sort": sorted ? direction : "none" },
        h("button", { type: "button", class: sorted ? `sorted ${direction}` : "", click: () => this.sort(i) }, column.title),
      );
    });
    replaceChildren(this.heads, ...heads);
  }

  private sort(column: number): void {
    const numeric = COLUMNS[column].numeric;
    if (this.column !== column) {
      this.column = column;
      this.descending = numeric;
    } else if (this.descending === numeric) {
      this.descending = !numeric;
    } else {
      this.column = -1;
    }
    this.rebuild();
    this.heads.querySelectorAll("button")[column]?.focus();
  }

  private row(index: number): HTMLElement {
    const module = this.rows[index];
    const info = this.app.model.data.modules[module];
    const selected = this.app.selectedModule() === module;
    const found = this.app.model.callsOfModule(module).some((call) => this.app.found.calls.has(call));
    return h(
      "div",
      {
        class: `table-row${selected ? " selected" : ""}${found ? " hit" : ""}`,
        role: "row",
        tabindex: index === this.focused ? 0 : -1,
        "aria-selected": String(selected),
        "aria-rowindex": index + 2,
        click: () => {
          this.focused = index;
          this.choose(module);
        },
      },
      ...COLUMNS.map((column) => {
        const text = column.text(info);
        const full = String(column.value(info) ?? "");
        return h("div", { class: column.numeric ? "cell numeric" : "cell", role: "cell", title: full.length > 16 ? full.slice(0, 400) : null }, text.slice(0, 400));
      }),
    );
  }

  private choose(module: number): void {
    const call = this.app.model.callsOfModule(module)[0];
    this.app.reveal(call === undefined ? { type: "module", module } : { type: "call", call });
  }

  private focusRow(index: number): void {
    this.focused = Math.min(Math.max(index, 0), this.rows.length - 1);
    this.list.scrollTo(this.focused);
    this.list.refresh();
    this.element.querySelector<HTMLElement>('.table-row[tabindex="0"]')?.focus({ preventScroll: true });
  }

  private onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity };
    const move = moves[event.key];
    if (move !== undefined) this.focusRow(Math.min(Math.max(this.focused + move, 0), this.rows.length - 1));
    else if (event.key === "Enter" || event.key === " ") this.choose(this.rows[this.focused]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

function kindsText(module: Module): string {
  return module.kinds.map(([kind, count]) => `${count} ${kind}`).join(", ");
}

function compare(a: number | string | null, b: number | string | null): number {
  if (a === null || b === null) return a === b ? 0 : a === null ? -1 : 1;
  if (typeof a === "string" || typeof b === "string") return String(a).localeCompare(String(b), "en", { numeric: true });
  return a - b;
}
