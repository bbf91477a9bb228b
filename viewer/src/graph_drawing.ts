// The elements of the graph: boxes, pills and wires of a laid-out scene.

import { ariaLabel } from "./captions.ts";
import { textOn } from "./colors.ts";
import { s } from "./dom.ts";
import type { Item } from "./items.ts";
import { HEADER, PILL_HEIGHT, STACK_EDGES, type Box, type PillBox, type Scene, type StubMark, type Wire } from "./layout.ts";
import { textWidth } from "./measure.ts";
import type { Model } from "./model.ts";
import { curve } from "./routes.ts";

export interface Look {
  selected: boolean;
  hit: boolean; // found by the search
  hitsInside: number; // the number of results inside a closed box
  fill: string | null; // the overlay's colour
}

export interface Drawing {
  boxes: Map<SVGGElement, Box>;
  wires: Map<SVGGElement, Wire>;
  pills: Map<SVGGElement, PillBox>;
  stubs: Map<SVGGElement, StubMark>;
}

export function drawScene(model: Model, scene: Scene, look: (item: Item) => Look, into: SVGElement, drawing: Drawing, depth = 0): void {
  for (const wire of scene.wires) into.append(drawWire(wire, drawing));
  for (const box of scene.boxes) {
    const element = drawBox(model, box, look(box.item));
    drawing.boxes.set(element, box);
    into.append(element);
    if (box.inner) drawScene(model, box.inner, look, into, drawing, depth + 1);
  }
  for (const stub of scene.stubs) into.append(drawStub(stub, drawing));
  for (const pill of scene.pills) into.append(drawPill(pill, drawing));
  for (const wire of scene.wires) if (wire.label) into.append(drawLabel(wire, depth));
}

function drawWire(wire: Wire, drawing: Drawing): SVGGElement {
  const path = curve(wire.points);
  const last = wire.points.at(-1)!;
  const before = wire.points.at(-2)!;
  const down = last.y >= before.y ? 1 : -1;
  const tip = `M${last.x - 3.5} ${last.y - 6 * down}L${last.x} ${last.y - 0.5 * down}L${last.x + 3.5} ${last.y - 6 * down}`;
  const element = s(
    "g",
    { class: wire.edge.tensors.length > 1 ? "wire bundle" : "wire" },
    s("path", { class: "reach", d: path }),
    s("path", { class: "line", d: path }),
    s("path", { class: "tip", d: tip }),
  );
  drawing.wires.set(element, wire);
  return element;
}

function drawLabel(wire: Wire, depth: number): SVGGElement {
  const { text, x, y } = wire.label!;
  const width = textWidth(text, "small") + 8;
  return s(
    "g",
    { class: `wire-label on${depth % 2}` },
    s("rect", { x: x - width / 2, y: y - 8, width, height: 16, rx: 3 }),
    s("text", { x, y: y + 4, "text-anchor": "middle" }, text),
  );
}

function drawStub(stub: StubMark, drawing: Drawing): SVGGElement {
  const y = stub.box.y;
  const element = s(
    "g",
    { class: "stub" },
    s("path", { d: `M${stub.x} ${y - 9}V${y}` }),
    s("circle", { cx: stub.x, cy: y - 10, r: 2.5 }),
    s("rect", { class: "reach", x: stub.x - 4, y: y - 14, width: 8, height: 14 }),
  );
  drawing.stubs.set(element, stub);
  return element;
}

function drawPill(pill: PillBox, drawing: Drawing): SVGGElement {
  const { x, y, width, text } = pill;
  const element = s(
    "g",
    { class: `pill ${pill.side}${pill.pill.named ? "" : " unnamed"}` },
    s("rect", { x, y, width, height: PILL_HEIGHT, rx: PILL_HEIGHT / 2 }),
    s("text", { x: x + width / 2, y: y + 14, "text-anchor": "middle" }, text),
  );
  drawing.pills.set(element, pill);
  return element;
}

function drawBox(model: Model, box: Box, look: Look): SVGGElement {
  const { item, x, y, width, height } = box;
  const classes = ["box", item.kind, box.inner ? "open" : "closed", `depth${Math.min(box.depth, 6) % 2}`];
  if (look.selected) classes.push("selected");
  if (look.hit) classes.push("hit");
  if (item.odd.length) classes.push("odd");
  const element = s("g", {
    class: classes.join(" "),
    role: "button",
    tabindex: -1,
    "aria-label": ariaLabel(model, item),
    "aria-expanded": box.openable ? String(box.inner !== null) : null,
    "aria-pressed": String(look.selected),
    "data-key": item.key,
  });
  const rx = item.kind === "node" ? 4 : 6;
  const behind = item.kind === "stack" && !box.inner ? STACK_EDGES : 0;
  for (const edge of behind ? [2, 1] : []) {
    const inset = edge * 4;
    element.append(s("rect", { class: "back", x: x + inset, y: y + behind - inset, width: width - 2 * inset, height: height - behind, rx }));
  }
  const frame = s("rect", { class: "frame", x, y: y + behind, width, height: height - behind, rx });
  element.append(frame);
  if (box.inner) drawHeading(element, box, look);
  else drawClosed(element, box, look, frame);
  if (look.hitsInside && !box.inner) drawBadge(element, x + width, y, String(look.hitsInside), "count");
  if (item.odd.length) drawBadge(element, x + (box.inner ? 4 : 0) + 14, y, "≠", "differs");
  return element;
}

function drawClosed(element: SVGGElement, box: Box, look: Look, frame: SVGRectElement): void {
  const { item, x, width } = box;
  const behind = item.kind === "stack" ? STACK_EDGES : 0;
  const y = box.y + behind;
  const height = box.height - behind;
  const ink = look.fill ? textOn(look.fill) : null;
  if (look.fill) frame.style.fill = look.fill;
  const text = (attributes: Record<string, string | number>, content: string): void => {
    const node = s("text", attributes, content);
    if (ink) node.style.fill = ink;
    element.append(node);
  };
  if (item.kind === "node" || item.kind === "group") {
    const centered = !box.value && !box.openable;
    text({ class: "title", x: centered ? x + width / 2 : x + 10, y: y + 18, "text-anchor": centered ? "middle" : "start" }, box.title);
    if (box.value) text({ class: "value", x: x + width - 10 - (box.openable ? 22 : 0), y: y + 18, "text-anchor": "end" }, box.value);
  } else {
    text({ class: "title", x: x + 12, y: y + (height > 40 ? 20 : 21) }, box.title);
    if (box.subtitle) text({ class: "subtitle", x: x + 12, y: y + 37 }, box.subtitle);
    if (box.value) text({ class: "value", x: x + width - 12, y: y + 37, "text-anchor": "end" }, box.value);
  }
  if (box.openable) drawChevron(element, x + width - 22, y + (height > 40 ? 5 : (height - 20) / 2), false, ink);
}

function drawHeading(element: SVGGElement, box: Box, look: Look): void {
  const { x, y, width } = box;
  const band = s("path", { class: "band", d: `M${x + 0.5} ${y + HEADER}v${-HEADER + 6.5}a6 6 0 0 1 6 -6h${width - 13}a6 6 0 0 1 6 6v${HEADER - 6.5}z` });
  const ink = look.fill ? textOn(look.fill) : null;
  if (look.fill) band.style.fill = look.fill;
  const title = s("text", { class: "title", x: x + 12, y: y + 19 }, box.title);
  const subtitle = s("text", { class: "subtitle", x: x + 20 + textWidth(box.title, "title"), y: y + 19 }, box.subtitle);
  const value = s("text", { class: "value", x: x + width - 32, y: y + 19, "text-anchor": "end" }, box.value);
  if (ink) for (const node of [title, subtitle, value]) node.style.fill = ink;
  element.append(band, title, subtitle, value);
  drawChevron(element, x + width - 26, y + 5, true, ink);
}

function drawChevron(element: SVGGElement, x: number, y: number, open: boolean, ink: string | null): void {
  const d = open ? `M${x + 6} ${y + 10}h8` : `M${x + 6} ${y + 10}h8M${x + 10} ${y + 6}v8`;
  const sign = s("path", { class: "sign", d });
  if (ink) sign.style.stroke = ink;
  element.append(
    s("g", { class: "toggle" }, s("title", {}, open ? "Close" : "Open"), s("rect", { x, y, width: 20, height: 20, rx: 4 }), sign),
  );
}

function drawBadge(element: SVGGElement, right: number, y: number, text: string, kind: string): void {
  const width = Math.max(textWidth(text, "small") + 10, 18);
  element.append(
    s(
      "g",
      { class: `badge ${kind}` },
      s("rect", { x: right - width + 6, y: y - 8, width, height: 16, rx: 8 }),
      s("text", { x: right + 6 - width / 2, y: y + 4, "text-anchor": "middle" }, text),
    ),
  );
}
