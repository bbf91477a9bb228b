// Positions of all boxes of the open levels: each open level is laid out on its own, and its size is that of its box in
// the level around it.

import { Graph, layout as dagreLayout } from "@dagrejs/dagre";
import { captionOf } from "./captions.ts";
import { shapeText } from "./format.ts";
import { isOpenable, portsOf, type Item } from "./items.ts";
import type { Edge, End, Level, Levels, Pill } from "./levels.ts";
import { fitted, textWidth } from "./measure.ts";
import { portFor, type Model } from "./model.ts";
import { routeAll, type Placed, type Point } from "./routes.ts";

export interface Box extends Placed {
  item: Item;
  path: string; // the keys from the root, for a box that is drawn more than once
  depth: number;
  title: string;
  subtitle: string;
  value: string;
  openable: boolean;
  inner: Scene | null;
}

export interface PillBox extends Placed {
  pill: Pill;
  side: "input" | "output";
  text: string;
}

export interface Wire {
  edge: Edge;
  points: Point[];
  label: { text: string; x: number; y: number } | null;
  ends: [Box | PillBox, Box | PillBox];
}

export interface StubMark {
  tensor: number;
  box: Box;
  x: number;
}

/** One level with positions. Coordinates are those of the whole drawing. */
export interface Scene {
  level: Level;
  boxes: Box[];
  pills: PillBox[];
  wires: Wire[];
  stubs: StubMark[];
  width: number;
  height: number;
}

export interface LayoutInput {
  model: Model;
  levels: Levels;
  isOpen(key: string): boolean;
  valueOf(item: Item): string;
  /** Levels that were laid out before. */
  arrangements: Map<string, Arrangement>;
}

export const HEADER = 36;
export const PILL_HEIGHT = 20;
// The edges of the boxes behind the first one of a stack.
export const STACK_EDGES = 8;
const PADDING = 16;
const MAX_TEXT = 200;
const MAX_PILL_TEXT = 150;
const MAX_LABEL_NAME = 130;
// Levels with at most this many edges have room for a label on each.
const MAX_LABELLED_EDGES = 16;
const MAX_DEPTH = 60;

export function layoutGraph(input: LayoutInput): Scene {
  const scene = layoutLevel(input, input.levels.root, "", 0);
  move(scene, 0, 0);
  return scene;
}

function layoutLevel(input: LayoutInput, owner: Item, path: string, depth: number): Scene {
  const level = input.levels.levelOf(owner);
  const boxes = level.items.map((item) => layoutBox(input, item, `${path}>${item.key}`, depth));
  const pills = [
    ...level.inputs.map((pill) => pillBox(pill, "input")),
    ...level.outputs.map((pill) => pillBox(pill, "output")),
  ];
  const scene: Scene = { level, boxes, pills, wires: [], stubs: [], width: 0, height: 0 };
  if (boxes.length) arrange(input, scene);
  return scene;
}

function layoutBox(input: LayoutInput, item: Item, path: string, depth: number): Box {
  const caption = captionOf(input.model, item);
  const title = fitted(caption.title, item.kind === "node" ? "body" : "title", MAX_TEXT);
  const subtitle = fitted(caption.subtitle, "small", MAX_TEXT);
  const value = input.valueOf(item);
  const openable = isOpenable(input.model, item);
  const box: Box = { item, path, depth, title, subtitle, value, openable, inner: null, x: 0, y: 0, width: 0, height: 0 };
  if (openable && depth < MAX_DEPTH && input.isOpen(item.key)) {
    box.inner = layoutLevel(input, item, path, depth + 1);
    const heading = textWidth(title, "title") + textWidth(subtitle, "small") + textWidth(value, "small") + 72;
    box.width = Math.max(box.inner.width + 2 * PADDING, heading);
    box.height = innerTop(box.inner) + box.inner.height + (hasPills(box.inner, "output") ? -PILL_HEIGHT / 2 : PADDING);
    return box;
  }
  const titleWidth = textWidth(title, item.kind === "node" ? "body" : "title");
  const chevron = openable ? 24 : 0;
  if (item.kind === "node" || item.kind === "group") {
    const tail = value ? textWidth(value, "small") + 8 : 0;
    box.width = grid(Math.max(titleWidth + tail + 20 + chevron, 48));
    box.height = 28;
  } else {
    const second = textWidth(subtitle, "small") + (value ? textWidth(value, "small") + 16 : 0);
    box.width = grid(Math.max(titleWidth + chevron + 24, second + 24 + (subtitle ? 0 : chevron), 112));
    box.height = (subtitle || value ? 48 : 32) + (item.kind === "stack" ? STACK_EDGES : 0);
  }
  return box;
}

function pillBox(pill: Pill, side: "input" | "output"): PillBox {
  const text = fitted(pill.name, "small", MAX_PILL_TEXT);
  return { pill, side, text, x: 0, y: 0, width: grid(textWidth(text, "small") + 20), height: PILL_HEIGHT };
}

/** Where the content of an open box begins: input pills lie on the lower edge of the heading. */
function innerTop(inner: Scene): number {
  return hasPills(inner, "input") ? HEADER - PILL_HEIGHT / 2 : HEADER + 8;
}

function hasPills(scene: Scene, side: "input" | "output"): boolean {
  return scene.pills.some((pill) => pill.side === side);
}

function grid(value: number): number {
  return Math.ceil(value / 4) * 4;
}

export interface Arrangement {
  places: Map<string, Point>;
  wires: { points: Point[]; label: Point | null }[];
}

function arrange(input: LayoutInput, scene: Scene): void {
  const { level, boxes, pills } = scene;
  const labels = level.edges.map((edge) => (level.edges.length <= MAX_LABELLED_EDGES ? edgeLabel(input.model, level, edge) : ""));
  const { places, wires } = arrangement(input, scene, labels);
  const place = (placed: Placed, key: string): void => {
    const { x, y } = places.get(key)!;
    placed.x = x - placed.width / 2;
    placed.y = y - placed.height / 2;
  };
  boxes.forEach((box, i) => place(box, `i${i}`));
  pills.forEach((pill, i) => place(pill, `p${i}`));
  alignPills(scene);
  for (const box of boxes) if (box.inner && crosses(scene, box, box.inner)) mirror(box.inner);
  const at = (end: End): Box | PillBox =>
    end.at === "item" ? boxes[end.index] : pills[end.at === "input" ? end.index : level.inputs.length + end.index];
  const drafts = level.edges.map((edge, i) => {
    const { points, label } = wires[i];
    return { edge, from: at(edge.from), to: at(edge.to), points, label: label ? { text: labels[i], ...label } : null };
  });
  scene.wires = routeAll(drafts, boxes, innerPill).map((routed, i) => ({
    edge: drafts[i].edge,
    points: routed.points,
    label: routed.label,
    ends: [drafts[i].from, drafts[i].to],
  }));
  scene.stubs = stubMarks(scene);
  normalize(scene);
}

/** Where the boxes of a level lie. It depends on their sizes alone, so that a level is laid out again only when one changes. */
function arrangement(input: LayoutInput, scene: Scene, labels: string[]): Arrangement {
  const { level, boxes, pills } = scene;
  const key = [level.key, ...boxes.map((box) => `${box.width},${box.height}`)].join("|");
  const known = input.arrangements.get(key);
  if (known) return known;
  const graph = new Graph({ multigraph: true });
  const many = boxes.length > 40;
  graph.setGraph({ rankdir: "TB", nodesep: 20, ranksep: many ? 28 : 32, edgesep: 16, ranker: many ? "tight-tree" : "network-simplex" });
  boxes.forEach((box, i) => graph.setNode(`i${i}`, { width: box.width, height: box.height }));
  pills.forEach((pill, i) => graph.setNode(`p${i}`, { width: pill.width, height: pill.height }));
  const name = (end: End): string => {
    if (end.at === "item") return `i${end.index}`;
    return `p${end.at === "input" ? end.index : level.inputs.length + end.index}`;
  };
  level.edges.forEach((edge, i) => {
    const label = labels[i] ? { width: textWidth(labels[i], "small") + 8, height: 16, labelpos: "c" } : {};
    graph.setEdge(name(edge.from), name(edge.to), { weight: 1, ...label }, `e${i}`);
  });
  anchorPills(graph, scene);
  dagreLayout(graph);
  const places = new Map(graph.nodes().map((node) => [node, graph.node(node) as Point]));
  const wires = level.edges.map((edge, i) => {
    const laid = graph.edge(name(edge.from), name(edge.to), `e${i}`) as { points: Point[]; x: number; y: number };
    return { points: laid.points, label: labels[i] ? { x: laid.x, y: laid.y } : null };
  });
  const result = { places, wires };
  if (input.arrangements.size > 500) input.arrangements.clear();
  input.arrangements.set(key, result);
  return result;
}

/** Input pills belong to the first rank, output pills to the last; boxes without inputs or outputs are between them. */
function anchorPills(graph: Graph, { boxes, pills }: Scene): void {
  const hidden = { width: 0, height: 0 };
  if (pills.some((pill) => pill.side === "input")) graph.setNode("top", hidden);
  if (pills.some((pill) => pill.side === "output")) graph.setNode("bottom", hidden);
  pills.forEach((pill, i) => {
    if (pill.side === "input") graph.setEdge("top", `p${i}`, { weight: 1000 }, "anchor");
    else graph.setEdge(`p${i}`, "bottom", { weight: 1000 }, "anchor");
  });
  boxes.forEach((_, i) => {
    const key = `i${i}`;
    if (graph.hasNode("top") && !graph.inEdges(key)?.length) graph.setEdge("top", key, { weight: 0, minlen: 2 }, "anchor");
    if (graph.hasNode("bottom") && !graph.outEdges(key)?.length) graph.setEdge(key, "bottom", { weight: 0, minlen: 2 }, "anchor");
  });
}

/** Pills lie on one line above all boxes, or below. */
function alignPills(scene: Scene): void {
  const inputs = scene.pills.filter((pill) => pill.side === "input");
  const outputs = scene.pills.filter((pill) => pill.side === "output");
  const top = Math.min(...inputs.map((pill) => pill.y));
  const bottom = Math.max(...outputs.map((pill) => pill.y));
  for (const pill of inputs) pill.y = top;
  for (const pill of outputs) pill.y = bottom;
}

/** The pill inside an open box at which a tensor enters or leaves. */
function innerPill(end: Placed, tensor: number, side: "input" | "output"): Placed | null {
  const inner = "inner" in end ? (end as Box).inner : null;
  const pill = inner?.pills.find((candidate) => candidate.side === side && candidate.pill.tensors.includes(tensor));
  // Inside a box that is wider than its content, the content is in the middle.
  return pill && inner ? { ...pill, x: pill.x + (end.width - inner.width) / 2 } : null;
}

/** Whether the wires to the pills of an open box cross more often than they would if its content were mirrored. */
function crosses(scene: Scene, box: Box, inner: Scene): boolean {
  const { level, boxes, pills } = scene;
  const index = boxes.indexOf(box);
  const ends: { outside: number; inside: number; side: string }[] = [];
  const add = (end: End, tensor: number, side: "input" | "output"): void => {
    const pill = inner.pills.find((candidate) => candidate.side === side && candidate.pill.tensors.includes(tensor));
    const other = end.at === "item" ? boxes[end.index] : pills[end.at === "input" ? end.index : level.inputs.length + end.index];
    if (pill) ends.push({ outside: other.x + other.width / 2, inside: pill.x, side });
  };
  for (const edge of level.edges) {
    if (edge.to.at === "item" && edge.to.index === index) add(edge.from, edge.tensors[0], "input");
    if (edge.from.at === "item" && edge.from.index === index) add(edge.to, edge.tensors[0], "output");
  }
  let balance = 0;
  for (const a of ends) for (const b of ends) if (a.side === b.side) balance += Math.sign((a.outside - b.outside) * (a.inside - b.inside));
  return balance < 0;
}

function mirror(scene: Scene): void {
  const { width } = scene;
  for (const placed of [...scene.boxes, ...scene.pills]) placed.x = width - placed.x - placed.width;
  for (const stub of scene.stubs) stub.x = width - stub.x;
  for (const wire of scene.wires) {
    wire.points = wire.points.map((point) => ({ x: width - point.x, y: point.y }));
    if (wire.label) wire.label = { ...wire.label, x: width - wire.label.x };
  }
  for (const box of scene.boxes) if (box.inner) mirror(box.inner);
}

function stubMarks(scene: Scene): StubMark[] {
  const used = new Map<number, number>();
  return scene.level.stubs.flatMap(({ tensor, item }) => {
    const count = used.get(item) ?? 0;
    used.set(item, count + 1);
    const box = scene.boxes[item];
    const x = box.x + 10 + count * 8;
    return x < box.x + box.width - 8 ? [{ tensor, box, x }] : [];
  });
}

/** Move the content of a level so that it begins at 0, 0; pills lie on the border. */
function normalize(scene: Scene): void {
  const placed: Placed[] = [...scene.boxes, ...scene.pills];
  const points = scene.wires.flatMap((wire) => wire.points);
  const labels = scene.wires.flatMap((wire) => (wire.label ? [wire.label] : []));
  const half = (label: { text: string }): number => textWidth(label.text, "small") / 2 + 4;
  const left = Math.min(...placed.map((p) => p.x), ...points.map((p) => p.x), ...labels.map((l) => l.x - half(l)));
  const right = Math.max(...placed.map((p) => p.x + p.width), ...points.map((p) => p.x), ...labels.map((l) => l.x + half(l)));
  const top = Math.min(...placed.map((p) => p.y));
  const bottom = Math.max(...placed.map((p) => p.y + p.height));
  shift(scene, -left, -top);
  scene.width = right - left;
  scene.height = bottom - top;
}

/** Turn coordinates relative to each level into those of the drawing. */
function move(scene: Scene, dx: number, dy: number): void {
  shift(scene, dx, dy);
  for (const box of scene.boxes) {
    if (!box.inner) continue;
    move(box.inner, box.x + (box.width - box.inner.width) / 2, box.y + innerTop(box.inner));
  }
}

function shift(scene: Scene, dx: number, dy: number): void {
  for (const placed of [...scene.boxes, ...scene.pills]) {
    placed.x += dx;
    placed.y += dy;
  }
  for (const stub of scene.stubs) stub.x += dx;
  for (const wire of scene.wires) {
    wire.points = wire.points.map((point) => ({ x: point.x + dx, y: point.y + dy }));
    if (wire.label) wire.label = { ...wire.label, x: wire.label.x + dx, y: wire.label.y + dy };
  }
}

/** The argument name and the shape; for several tensors, their number. */
function edgeLabel(model: Model, level: Level, edge: Edge): string {
  if (edge.tensors.length > 1) return `${edge.tensors.length} tensors`;
  const tensor = edge.tensors[0];
  const shape = shapeText(model.text(model.data.tensors.shape[tensor]));
  const name = edge.to.at === "item" ? (portFor(portsOf(model, level.items[edge.to.index]).inputs, tensor)?.name ?? "") : "";
  const isPill = edge.from.at === "input" && level.inputs[edge.from.index].name === name;
  return [isPill ? "" : fitted(name, "small", MAX_LABEL_NAME), fitted(shape, "small", MAX_LABEL_NAME)].filter(Boolean).join(" ");
}
