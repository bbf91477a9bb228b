// The map: the calls as an icicle or a treemap, sized by nodes, parameters, bytes or an overlay that adds up.

import { hierarchy, partition, treemap, treemapSquarify, type HierarchyRectangularNode } from "d3-hierarchy";
import type { App } from "./app.ts";
import { textOn } from "./colors.ts";
import { h, replaceChildren, s } from "./dom.ts";
import { plural } from "./format.ts";
import { fitted, textWidth } from "./measure.ts";
import { reducedMotion } from "./pan_zoom.ts";
import { sizeText } from "./sizes.ts";
import type { State } from "./state.ts";
import { hideTooltip, showTooltip } from "./tooltip.ts";

const HEAD = 20; // the heading of a cell with cells inside, in the treemap
const MIN_TEXT = 28;
const MIN_SIDE = 2;
// Calls that would be thinner than this share a cell.
const MIN_CELL = 2.5;
// A name that does not fit is shortened to no less than this, or left out.
const MIN_LETTERS = 10;
// At most this many ranks of the hierarchy at once; a click shows those below.
const MAX_COLUMNS = 6;
const MIN_COLUMN = 96;

interface Cell {
  call: number;
  own: boolean; // the nodes of the call itself
  rest: number[]; // calls inside it that are too small to be drawn one by one
  children?: Cell[];
}

type Placed = HierarchyRectangularNode<Cell>;

export class MapView {
  readonly element: HTMLElement;
  private readonly svg: SVGSVGElement;
  private readonly crumbs: HTMLElement;
  private readonly note: HTMLElement;
  private cells = new Map<SVGGElement, Placed>();
  private focused = -1;

  constructor(private readonly app: App) {
    this.svg = s("svg", { class: "map", role: "group", "aria-label": "Map of module calls" });
    this.crumbs = h("nav", { class: "crumbs", "aria-label": "Zoomed to" });
    this.note = h("p", { class: "empty-state", hidden: true });
    this.element = h("div", { class: "map-view" }, this.crumbs, h("div", { class: "map-area" }, this.svg, this.note));
    this.svg.addEventListener("click", (event) => this.onClick(event));
    this.svg.addEventListener("pointermove", (event) => this.onHover(event));
    this.svg.addEventListener("pointerleave", hideTooltip);
    this.svg.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => {
      if (this.app.state.view === "map") this.render();
    }).observe(this.svg);
  }

  update(state: State, before: State | null): void {
    if (state.view !== "map") return;
    const zoomed = before?.view === "map" && before.mapRoot !== state.mapRoot;
    const hadFocus = this.svg.contains(document.activeElement);
    this.render();
    if (zoomed && !reducedMotion()) this.svg.animate([{ opacity: 0.3 }, { opacity: 1 }], { duration: 140, easing: "ease-out" });
    if (hadFocus) this.focus();
    if (before && state.selection !== before.selection && state.mapRoot === before.mapRoot) this.showSelected();
  }

  focus(): void {
    this.svg.querySelector<SVGGElement>('[tabindex="0"]')?.focus({ preventScroll: true });
  }

  zoomOut(): boolean {
    const { mapRoot } = this.app.state;
    if (mapRoot === 0) return false;
    this.app.store.set({ mapRoot: Math.max(this.app.model.call(mapRoot).parent, 0) });
    return true;
  }

  /** Zoom so that the selected call is drawn. */
  private showSelected(): void {
    const { app } = this;
    const call = app.selectedCall();
    const isDrawn = [...this.cells.values()].some(({ data }) => data.call === call && !data.own && !data.rest.length);
    if (call < 0 || isDrawn || !app.totals(app.size())[call]) return;
    app.store.set({ mapRoot: app.model.childCalls(call).length ? call : Math.max(app.model.call(call).parent, 0) });
  }

  private render(): void {
    const width = this.svg.clientWidth;
    const height = this.svg.clientHeight;
    if (!width || !height) return;
    const { app } = this;
    const size = app.size();
    const totals = app.totals(size);
    const { mapRoot, shape } = app.state;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.drawCrumbs(mapRoot);
    this.note.hidden = totals[mapRoot] > 0;
    replaceChildren(this.note, `${app.model.call(mapRoot).id || "The model"} has no ${size.title.toLowerCase()}.`);
    this.cells.clear();
    const elements: SVGGElement[] = [];
    if (totals[mapRoot] > 0) {
      const root = hierarchy(this.cellOf(mapRoot, totals)).sum((cell) => (cell.children ? 0 : cell.own ? size.own(cell.call) : cell.rest.length ? sum(cell.rest, totals) : totals[cell.call]));
      const placed = shape === "icicle" ? icicle(root, width, height) : tiles(root, width, height);
      const add = (node: Placed): void => {
        const element = this.cell(node, shape === "icicle");
        if (!element) return;
        this.cells.set(element, node);
        elements.push(element);
        node.children?.forEach(add);
      };
      add(placed);
    }
    this.svg.replaceChildren(...elements);
    this.makeFocusable();
  }

  /** The calls below, as deep as the map shows; what a call computes itself is a cell beside the calls inside it. */
  private cellOf(call: number, totals: number[], depth = 0): Cell {
    const inner = this.app.model.childCalls(call).filter((child) => totals[child] > 0);
    if (!inner.length || depth > 12) return { call, own: false, rest: [] };
    const least = (totals[this.app.state.mapRoot] * MIN_CELL) / Math.max(this.svg.clientHeight, 1);
    const drawn = inner.filter((child) => totals[child] >= least);
    const rest = inner.filter((child) => totals[child] < least);
    const cells = drawn.map((child) => this.cellOf(child, totals, depth + 1));
    if (rest.length) cells.push({ call, own: false, rest });
    if (this.app.size().own(call) > 0) cells.push({ call, own: true, rest: [] });
    return { call, own: false, rest: [], children: cells };
  }

  private cell(node: Placed, columns: boolean): SVGGElement | null {
    const [x, y, width, height] = [node.x0, node.y0, node.x1 - node.x0, node.y1 - node.y0];
    if (width < MIN_SIDE || height < MIN_SIDE) return null;
    const { app } = this;
    const { call, own, rest } = node.data;
    const { model } = app;
    const isPart = own || rest.length > 0;
    const overlay = app.overlay() ?? app.overlay("class")!;
    const ofOwn = overlay.overlay.id === "class" ? null : (overlay.overlay.calls[call] ?? null);
    const ofRest = rest.length ? overlay.combined(rest.map((inner) => overlay.ofCall(inner))) : null;
    const shown = own ? ofOwn : rest.length ? ofRest : overlay.ofCall(call);
    // What encloses the others in a treemap has the largest amounts, and would only be a dark frame.
    const isFrame = node.children !== undefined && !columns && !overlay.isCategory;
    const fill = isFrame ? null : overlay.color(shown);
    const selected = app.selectedCall() === call && !isPart;
    const name = own ? "own nodes" : rest.length ? plural(rest.length, "call") : model.localName(call);
    const value = sizeText(app.size(), node.value ?? 0);
    const frame = s("rect", { x: x + 0.5, y: y + 0.5, width: Math.max(width - 1, 1), height: Math.max(height - 1, 1), rx: Math.min(3, width / 4, height / 4) });
    if (fill) frame.style.fill = fill;
    const element = s(
      "g",
      {
        class: ["cell", own ? "own" : rest.length ? "rest" : "", selected ? "selected" : "", app.found.calls.has(call) && !isPart ? "hit" : "", node.children ? "outer" : ""].join(" "),
        role: "button",
        tabindex: -1,
        "aria-label": `${model.call(call).id || model.localName(call)}${isPart ? `, ${name}` : ""}, ${model.moduleOf(call).class}, ${value}`.slice(0, 400),
        "data-call": isPart ? null : model.call(call).id.slice(0, 400),
      },
      frame,
    );
    const ink = fill ? textOn(fill) : null;
    const overlayText = app.overlay() && app.overlay()!.overlay.id !== "class" ? overlay.text(shown) : "";
    const second = overlayText || value;
    this.writeText(element, { x, y, width, height: node.children && !columns ? Math.min(HEAD, height) : height }, name, isPart ? "" : model.moduleOf(call).class, second, ink);
    return element;
  }

  /** The name, then the class and the value where there is room; nothing that would be cut to a few letters. */
  private writeText(element: SVGGElement, area: { x: number; y: number; width: number; height: number }, name: string, kind: string, value: string, ink: string | null): void {
    const room = area.width - 12;
    if (room < MIN_TEXT || area.height < 14) return;
    const text = (className: string, y: number, content: string): void => {
      const node = s("text", { class: className, x: area.x + 6, y }, content);
      if (ink) node.style.fill = ink;
      element.append(node);
    };
    const title = fitted(name, "title", room);
    if (title !== name && Array.from(title).length < MIN_LETTERS) return;
    if (area.height < 34) {
      const both = textWidth(title, "title") + textWidth(value, "small") + 10 <= room;
      text("title", area.y + area.height / 2 + 4, title);
      if (both) {
        const node = s("text", { class: "value", x: area.x + area.width - 6, y: area.y + area.height / 2 + 4, "text-anchor": "end" }, value);
        if (ink) node.style.fill = ink;
        element.append(node);
      }
      return;
    }
    text("title", area.y + 16, title);
    const withClass = `${value} · ${kind}`;
    if (kind && textWidth(withClass, "small") <= room) text("value", area.y + 31, withClass);
    else if (textWidth(value, "small") <= room) text("value", area.y + 31, value);
  }

  private drawCrumbs(call: number): void {
    const { model } = this.app;
    const path: number[] = [];
    for (let at = call; at >= 0; at = model.call(at).parent) path.unshift(at);
    replaceChildren(
      this.crumbs,
      ...path.map((at, i) =>
        h(
          "button",
          { type: "button", class: "crumb", "aria-current": i === path.length - 1 ? "true" : null, click: () => this.app.store.set({ mapRoot: at }) },
          model.localName(at).slice(0, 60),
        ),
      ),
    );
  }

  private onClick(event: MouseEvent): void {
    const node = this.nodeAt(event);
    if (!node) return;
    const { call, own, rest } = node.data;
    const { state } = this.app;
    if (rest.length) {
      this.app.select({ type: "call", call: rest[0] });
      return;
    }
    // The zoomed call leads back out; a cell with calls inside zooms; the first click on others selects.
    if (call === state.mapRoot && !own) {
      this.app.select({ type: "call", call });
      this.zoomOut();
      return;
    }
    const zooms = node.children !== undefined;
    this.app.store.set({ selection: { type: "call", call }, ...(zooms ? { mapRoot: call } : {}) });
  }

  private nodeAt(event: Event): Placed | undefined {
    const element = (event.target as Element).closest<SVGGElement>("g.cell");
    return element ? this.cells.get(element) : undefined;
  }

  private onHover(event: PointerEvent): void {
    const node = this.nodeAt(event);
    if (!node) {
      hideTooltip();
      return;
    }
    const { app } = this;
    const { call, own, rest } = node.data;
    const size = app.size();
    const value = node.value ?? 0;
    const share = ((100 * value) / (app.totals(size)[0] || 1)).toFixed(1);
    const overlay = app.overlay();
    const text = overlay ? overlay.text(overlay.ofCall(call)) : "";
    const id = app.model.call(call).id || "(root)";
    showTooltip(event, {
      title: own ? `${id}: nodes of its own` : rest.length ? `${id}: ${plural(rest.length, "call")}` : id,
      lines: [rest.length ? `${app.model.localName(rest[0])} … ${app.model.localName(rest.at(-1)!)}` : app.model.moduleOf(call).class, `${size.title}: ${sizeText(size, value)} (${share} %)`, overlay && text ? `${overlay.overlay.title}: ${text}` : ""].filter(Boolean),
    });
  }

  private makeFocusable(): void {
    let chosen: SVGGElement | null = null;
    for (const [element, node] of this.cells) if (!node.data.own && !node.data.rest.length && node.data.call === this.focused) chosen = element;
    chosen ??= this.cells.keys().next().value ?? null;
    chosen?.setAttribute("tabindex", "0");
  }

  private focusNode(target: Placed | null | undefined): void {
    if (!target) return;
    for (const [element, node] of this.cells) {
      if (node !== target) continue;
      this.focused = node.data.call;
      this.svg.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
      element.setAttribute("tabindex", "0");
      element.focus({ preventScroll: true });
    }
  }

  private onKey(event: KeyboardEvent): void {
    const node = this.nodeAt(event);
    if (!node || event.ctrlKey || event.metaKey || event.altKey) return;
    const siblings = node.parent?.children ?? [node];
    const at = siblings.indexOf(node);
    if (event.key === "ArrowDown") this.focusNode(siblings[at + 1]);
    else if (event.key === "ArrowUp") this.focusNode(siblings[at - 1]);
    else if (event.key === "ArrowRight") this.focusNode(node.children?.[0]);
    else if (event.key === "ArrowLeft") this.focusNode(node.parent);
    else if (event.key === "Enter" || event.key === " ") {
      this.focused = node.data.call;
      this.app.store.set({ selection: { type: "call", call: node.data.call }, ...(event.key === "Enter" && node.children ? { mapRoot: node.data.call } : {}) });
      this.focus();
    } else if (event.key === "Backspace") this.zoomOut();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

type Root = ReturnType<typeof hierarchy<Cell>>;

/** Columns from left to right, one for each rank of the hierarchy. */
function icicle(root: Root, width: number, height: number): Placed {
  const ranks = root.height + 1;
  const shown = Math.max(Math.min(ranks, MAX_COLUMNS, Math.floor(width / MIN_COLUMN)), 1);
  const column = width / shown;
  const placed = partition<Cell>().size([height, column * ranks])(root);
  placed.each((node) => {
    [node.x0, node.y0] = [node.y0, node.x0];
    [node.x1, node.y1] = [node.y1, node.x1];
    if (node.depth >= shown) node.x1 = node.x0; // shown after a click
    else if (!node.children) node.x1 = width; // the last one of its branch fills the row
  });
  return placed;
}

function tiles(root: Root, width: number, height: number): Placed {
  return treemap<Cell>().tile(treemapSquarify.ratio(1.4)).size([width, height]).paddingInner(2).paddingOuter(3).paddingTop((node) => (node.children ? HEAD : 3))(root);
}

function sum(calls: number[], totals: number[]): number {
  return calls.reduce((total, call) => total + totals[call], 0);
}
