// The graph view: draws the open levels, and turns pointer and keys into actions.

import type { App } from "./app.ts";
import { captionOf } from "./captions.ts";
import { h, iconButton, s } from "./dom.ts";
import { plural } from "./format.ts";
import { drawScene, type Drawing, type Look } from "./graph_drawing.ts";
import { stackedCalls, type Item } from "./items.ts";
import { layoutGraph, type Arrangement, type Box, type PillBox, type Scene, type StubMark, type Wire } from "./layout.ts";
import { portFor } from "./model.ts";
import { PanZoom, reducedMotion } from "./pan_zoom.ts";
import { portsOf } from "./items.ts";
import { curve } from "./routes.ts";
import type { Selection, State } from "./state.ts";
import { hideTooltip, showTooltip, type TooltipText } from "./tooltip.ts";

// A drawing that would be smaller than this is shown from its upper end.
const READABLE = 0.7;

export class GraphView {
  readonly element: HTMLElement;
  private readonly svg: SVGSVGElement;
  private readonly content: SVGGElement;
  private readonly pan: PanZoom;
  private scene: Scene | null = null;
  private drawing: Drawing = emptyDrawing();
  private focused = "";
  private anchor: { key: string; x: number; y: number } | null = null;
  private readonly arrangements = new Map<string, Arrangement>();
  private stale = true;
  private fitted = false;

  constructor(private readonly app: App) {
    this.content = s("g", { class: "drawing" });
    this.svg = s("svg", { class: "graph", role: "group", "aria-label": "Graph of module calls" }, this.content);
    this.pan = new PanZoom(this.svg, this.content, () => hideTooltip());
    this.element = h(
      "div",
      { class: "graph-view" },
      this.svg,
      h(
        "div",
        { class: "tools", role: "toolbar", "aria-label": "Zoom" },
        iconButton("plus", "Zoom in", () => this.pan.zoomBy(1.3), "+"),
        iconButton("minus", "Zoom out", () => this.pan.zoomBy(1 / 1.3), "-"),
        iconButton("fit", "Fit everything", () => this.fit(), "f"),
        iconButton("target", "Zoom to the selection", () => this.zoomToSelection(), "z"),
        iconButton("collapse", "Close all", () => this.closeAll(), "c"),
      ),
    );
    this.listen();
  }

  update(state: State, before: State | null): void {
    const changed = !before || state.open !== before.open || state.overlay !== before.overlay || state.query !== before.query;
    if (changed || this.themeStale) this.stale = true;
    if (state.view !== "graph") return;
    if (this.stale) this.render();
    else if (!before || before.selection !== state.selection) this.mark();
    if (!this.fitted) this.firstFit(state);
    else if (state.zoom && before && (before.zoom !== state.zoom || before.selection !== state.selection)) this.zoomTo(state.zoom, true);
  }

  themeStale = false;

  fit(): void {
    if (this.scene) this.pan.show(this.boundsOf(this.scene), 1.25, true);
    if (this.app.state.zoom) this.app.store.set({ zoom: "" });
  }

  zoomBy(factor: number): void {
    this.pan.zoomBy(factor);
  }

  zoomToSelection(): void {
    const { selection } = this.app.state;
    if (!selection) return;
    const key = this.app.pathTo(selection).at(-1);
    if (!key) return;
    this.app.store.set({ zoom: key });
    this.zoomTo(key, true);
  }

  closeAll(): void {
    this.app.setOpen([]);
    this.fit();
  }

  /** Show the whole drawing for printing; the function that is returned restores the view. */
  prepareToPrint(): () => void {
    if (!this.scene) return () => {};
    const { x, y, scale } = this.pan;
    const bounds = this.boundsOf(this.scene);
    this.pan.set(0, 0, 1);
    this.svg.setAttribute("viewBox", `${bounds.x - 8} ${bounds.y - 8} ${bounds.width + 16} ${bounds.height + 16}`);
    return () => {
      this.svg.removeAttribute("viewBox");
      this.pan.set(x, y, scale);
    };
  }

  private firstFit(state: State): void {
    if (!this.svg.clientWidth || !this.scene) return;
    this.fitted = true;
    if (state.zoom && this.zoomTo(state.zoom, false)) return;
    const bounds = this.boundsOf(this.scene);
    const { width, height } = this.pan.viewport;
    const fit = Math.min((width - 64) / bounds.width, (height - 64) / bounds.height);
    const selected = state.selection ? this.app.pathTo(state.selection).at(-1) : undefined;
    if (fit >= READABLE) this.pan.show(bounds, 1.1, false);
    else if (selected && this.zoomTo(selected, false)) return;
    else this.pan.showTop(bounds, Math.min(Math.max((width - 48) / bounds.width, READABLE), 0.9));
  }

  private boundsOf(scene: Scene): { x: number; y: number; width: number; height: number } {
    return { x: 0, y: 0, width: Math.max(scene.width, 1), height: Math.max(scene.height, 1) };
  }

  private zoomTo(key: string, animated: boolean): boolean {
    const box = this.boxByKey(key);
    if (!box) return false;
    const { width, height } = this.pan.viewport;
    const surroundings = {
      x: box.x - Math.max(0, (width / 1.2 - box.width) / 2),
      y: box.y - Math.max(0, (height / 1.2 - box.height) / 2),
      width: Math.max(box.width, width / 1.2),
      height: Math.max(box.height, height / 1.2),
    };
    this.pan.show(surroundings, 1.05, animated, 16);
    return true;
  }

  private boxByKey(key: string): Box | undefined {
    for (const box of this.drawing.boxes.values()) if (box.item.key === key) return box;
    return undefined;
  }

  private render(): void {
    const { app } = this;
    this.stale = false;
    this.themeStale = false;
    const before = new Map([...this.drawing.boxes.values()].map((box) => [box.path, { x: box.x, y: box.y }]));
    const hadFocus = this.svg.contains(document.activeElement);
    const open = app.open;
    this.scene = layoutGraph({
      model: app.model,
      levels: app.levels,
      isOpen: (key) => open.has(key),
      valueOf: (item) => this.valueOf(item),
      arrangements: this.arrangements,
    });
    this.drawing = emptyDrawing();
    const fresh = s("g");
    drawScene(app.model, this.scene, (item) => this.lookOf(item), fresh, this.drawing);
    this.content.replaceChildren(...fresh.childNodes);
    this.keepAnchor();
    this.animate(before);
    this.makeFocusable();
    if (hadFocus) this.focusBox(this.focused);
  }

  /** The box that was opened or closed stays where it is on the screen. */
  private keepAnchor(): void {
    const { anchor } = this;
    this.anchor = null;
    const box = anchor && this.boxByKey(anchor.key);
    if (!anchor || !box) return;
    const { scale } = this.pan;
    this.pan.set(anchor.x - (box.x + box.width / 2) * scale, anchor.y - box.y * scale, scale);
    const { width, height } = this.pan.viewport;
    if (box.width * scale < width - 48) this.pan.keepVisible({ ...box, height: Math.min(box.height, (height - 48) / scale) });
  }

  private animate(before: Map<string, { x: number; y: number }>): void {
    if (!before.size || reducedMotion() || this.drawing.boxes.size > 600) return;
    const timing = { duration: 160, easing: "ease-out" };
    for (const [element, box] of this.drawing.boxes) {
      if (!before.has(box.path)) element.animate([{ opacity: 0 }, { opacity: 1 }], timing);
    }
  }

  private mark(): void {
    for (const [element, box] of this.drawing.boxes) {
      const selected = this.isSelected(box.item);
      element.classList.toggle("selected", selected);
      element.setAttribute("aria-pressed", String(selected));
    }
    this.markWires();
  }

  private markWires(): void {
    const { selection } = this.app.state;
    for (const [element, wire] of this.drawing.wires) {
      const isTensor = selection?.type === "tensor" && wire.edge.tensors.includes(selection.tensor);
      const touches = wire.ends.some((end) => "item" in end && this.isSelected(end.item));
      element.classList.toggle("on", isTensor || touches);
    }
  }

  private valueOf(item: Item): string {
    const overlay = this.app.overlay();
    if (overlay && overlay.overlay.id !== "class") return overlay.text(overlay.ofItem(item));
    return item.kind === "node" || item.kind === "group" || item.kind === "graph" ? "" : plural(item.nodes.length, "node");
  }

  private lookOf(item: Item): Look {
    const { app } = this;
    const overlay = app.overlay();
    const { calls, nodes } = app.found;
    const hit = item.kind === "call" ? calls.has(item.call) : item.kind === "node" && nodes.has(item.node);
    return {
      selected: this.isSelected(item),
      hit,
      hitsInside: app.state.query && !hit ? this.hitsInside(item) : 0,
      fill: overlay ? overlay.color(overlay.ofItem(item)) : null,
    };
  }

  private hitsInside(item: Item): number {
    if (item.kind === "call") return this.app.foundInCalls.get(item.call) ?? 0;
    if (item.kind === "node") return 0;
    if (!item.members.length) return item.nodes.filter((node) => this.app.found.nodes.has(node)).length;
    return item.members.reduce((sum, member) => {
      const own = member.kind === "call" ? this.app.found.calls.has(member.call) : this.app.found.nodes.has(member.node);
      return sum + Number(own) + this.hitsInside(member);
    }, 0);
  }

  private isSelected(item: Item): boolean {
    const { selection } = this.app.state;
    if (!selection) return false;
    if (selection.type === "call") return item.kind === "call" && item.call === selection.call;
    if (selection.type === "node") return item.kind === "node" && item.node === selection.node;
    if (selection.type === "module") return item.kind === "call" && this.app.model.call(item.call).module === selection.module;
    return selection.type === "item" && item.key === selection.key;
  }

  private listen(): void {
    this.svg.addEventListener("click", (event) => this.onClick(event));
    this.svg.addEventListener("dblclick", (event) => {
      const box = this.boxAt(event);
      if (box?.openable && !(event.target as Element).closest(".toggle")) this.toggle(box);
    });
    this.svg.addEventListener("pointermove", (event) => this.onHover(event));
    this.svg.addEventListener("pointerleave", () => this.onLeave());
    this.svg.addEventListener("keydown", (event) => this.onKey(event));
    this.svg.addEventListener("focusin", (event) => {
      const box = this.boxAt(event);
      if (!box) return;
      this.focused = box.path;
      this.makeFocusable();
      this.pan.keepVisible({ ...box, height: Math.min(box.height, 80) });
    });
    new ResizeObserver(() => {
      if (!this.fitted && this.app.state.view === "graph") this.firstFit(this.app.state);
    }).observe(this.svg);
  }

  private boxAt(event: Event): Box | undefined {
    const element = (event.target as Element).closest<SVGGElement>("g.box");
    return element ? this.drawing.boxes.get(element) : undefined;
  }

  private onClick(event: MouseEvent): void {
    if (this.pan.dragged) return;
    const target = event.target as Element;
    const box = this.boxAt(event);
    if (box && target.closest(".toggle")) {
      this.toggle(box);
      return;
    }
    const tensors = this.tensorsAt(target);
    if (box) this.app.select(selectionOf(box.item));
    else if (tensors) this.app.select({ type: "tensor", tensor: tensors[0] });
    else this.app.select(null);
  }

  private tensorsAt(target: Element): number[] | null {
    const group = target.closest<SVGGElement>("g.wire, g.pill, g.stub");
    if (!group) return null;
    const wire = this.drawing.wires.get(group);
    const pill = this.drawing.pills.get(group);
    const stub = this.drawing.stubs.get(group);
    return wire?.edge.tensors ?? pill?.pill.tensors ?? (stub ? [stub.tensor] : null);
  }

  private toggle(box: Box): void {
    const { scale, x, y } = this.pan;
    this.anchor = { key: box.item.key, x: (box.x + box.width / 2) * scale + x, y: box.y * scale + y };
    this.focused = box.path;
    this.app.toggle(box.item.key);
  }

  private onHover(event: PointerEvent): void {
    if (event.buttons) return;
    const target = event.target as Element;
    const tensors = this.tensorsAt(target);
    const box = this.boxAt(event);
    this.clearHover();
    if (tensors) {
      const group = target.closest<SVGGElement>("g.wire, g.pill, g.stub")!;
      this.highlight(tensors);
      showTooltip(event, this.tensorTooltip(tensors, this.drawing.wires.get(group)));
    } else if (box && (!box.inner || target.closest(".band, .title, .subtitle"))) {
      for (const [element, wire] of this.drawing.wires) element.classList.toggle("near", wire.ends.includes(box));
      showTooltip(event, this.boxTooltip(box));
    } else {
      hideTooltip();
    }
  }

  private onLeave(): void {
    this.clearHover();
    hideTooltip();
  }

  private clearHover(): void {
    for (const element of this.content.querySelectorAll(".near")) element.classList.remove("near");
    for (const element of this.content.querySelectorAll(".full-wire")) element.remove();
  }

  /** Emphasize all wires of tensors, and draw those that are stubs. */
  private highlight(tensors: number[]): void {
    const wanted = new Set(tensors);
    for (const [element, wire] of this.drawing.wires) {
      if (wire.edge.tensors.some((tensor) => wanted.has(tensor))) element.classList.add("near");
    }
    for (const stub of this.drawing.stubs.values()) {
      const source = wanted.has(stub.tensor) && this.sourceOf(stub);
      if (!source) continue;
      // Beside all boxes of the level, so that it crosses none.
      const lane = Math.min(...sceneOf(this.scene!, stub.box)!.boxes.map((box) => box.x)) - 12;
      const from = { x: source.x + source.width / 2, y: source.y + source.height };
      const bend = Math.max(stub.box.y - 20, from.y + 16);
      const points = [from, { x: lane, y: Math.min(from.y + 24, bend) }, { x: lane, y: bend }, { x: stub.x, y: stub.box.y }];
      this.content.append(s("path", { class: "full-wire", d: curve(points) }));
    }
  }

  private sourceOf(stub: StubMark): Box | PillBox | undefined {
    for (const wire of this.drawing.wires.values()) {
      if (wire.edge.tensors.includes(stub.tensor) && sceneOf(this.scene!, stub.box)?.wires.includes(wire)) return wire.ends[0];
    }
    return undefined;
  }

  private tensorTooltip(tensors: number[], wire: Wire | undefined): TooltipText {
    const { model } = this.app;
    const argument = (tensor: number): string => {
      const end = wire?.ends[1];
      return end && "item" in end ? (portFor(portsOf(model, end.item).inputs, tensor)?.name ?? "") : "";
    };
    const line = (tensor: number): string =>
      [argument(tensor), model.data.tensors.name[tensor], model.describeTensor(tensor)].filter(Boolean).join("  ·  ");
    if (tensors.length > 1) return { title: plural(tensors.length, "tensor"), lines: tensors.map(line) };
    const name = argument(tensors[0]);
    const tensor = model.data.tensors.name[tensors[0]];
    return { title: name || tensor, lines: [name ? tensor : "", model.describeTensor(tensors[0]) || "shape and type unknown"].filter(Boolean) };
  }

  private boxTooltip(box: Box): TooltipText {
    const { model } = this.app;
    const { item } = box;
    const caption = captionOf(model, item);
    const lines: string[] = [];
    if (item.kind === "call") lines.push(model.call(item.call).id, model.moduleOf(item.call).class);
    if (item.kind === "node") lines.push(model.data.nodes.id[item.node]);
    if (item.kind === "stack") lines.push(`${plural(stackedCalls(item).length, "call")} with equal structure`);
    if (item.kind !== "node") lines.push(plural(item.nodes.length, "node"));
    const overlay = this.app.overlay();
    const value = overlay ? overlay.text(overlay.ofItem(item)) : "";
    if (overlay && value) lines.push(`${overlay.overlay.title}: ${value}`);
    lines.push(...item.odd.map((difference) => `≠ ${difference}`));
    return { title: caption.title, lines: lines.filter((line, i) => line && lines.indexOf(line) === i && line !== caption.title) };
  }

  private makeFocusable(): void {
    let found = false;
    for (const [element, box] of this.drawing.boxes) {
      const is = box.path === this.focused;
      element.setAttribute("tabindex", is ? "0" : "-1");
      found ||= is;
    }
    if (!found) this.drawing.boxes.keys().next().value?.setAttribute("tabindex", "0");
  }

  /** Focus a box by path; the first one if there is none. */
  focusBox(path = this.focused): void {
    let first: SVGGElement | null = null;
    for (const [element, box] of this.drawing.boxes) {
      first ??= element;
      if (box.path === path) {
        element.focus({ preventScroll: true });
        return;
      }
    }
    first?.focus({ preventScroll: true });
  }

  private onKey(event: KeyboardEvent): void {
    const box = this.boxAt(event);
    if (!box || event.ctrlKey || event.metaKey || event.altKey) return;
    const directions: Record<string, [number, number]> = {
      ArrowUp: [0, -1],
      ArrowDown: [0, 1],
      ArrowLeft: [-1, 0],
      ArrowRight: [1, 0],
    };
    const direction = directions[event.key];
    if (direction) {
      this.focusToward(box, direction);
    } else if (event.key === "Enter") {
      this.app.select(selectionOf(box.item));
      if (box.openable) this.toggle(box);
    } else if (event.key === " ") {
      this.app.select(selectionOf(box.item));
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  private focusToward(from: Box, [dx, dy]: [number, number]): void {
    let best: Box | null = null;
    let bestCost = Infinity;
    const center = (box: Box): [number, number] => [box.x + box.width / 2, box.y + (box.inner ? 16 : box.height / 2)];
    const [x, y] = center(from);
    for (const box of this.drawing.boxes.values()) {
      const [bx, by] = center(box);
      const along = (bx - x) * dx + (by - y) * dy;
      if (along <= 1) continue;
      const across = Math.abs((bx - x) * dy) + Math.abs((by - y) * dx);
      const cost = along + across;
      if (cost < bestCost) [best, bestCost] = [box, cost];
    }
    if (best) this.focusBox(best.path);
  }
}

function selectionOf(item: Item): Selection {
  if (item.kind === "call") return { type: "call", call: item.call };
  if (item.kind === "node") return { type: "node", node: item.node };
  return { type: "item", key: item.key };
}

function emptyDrawing(): Drawing {
  return { boxes: new Map(), wires: new Map(), pills: new Map(), stubs: new Map() };
}

/** The scene that contains a box. */
function sceneOf(scene: Scene, box: Box): Scene | null {
  if (scene.boxes.includes(box)) return scene;
  for (const inner of scene.boxes) {
    const found = inner.inner && sceneOf(inner.inner, box);
    if (found) return found;
  }
  return null;
}

