// The levels of the graph: what is inside an item, connected by the tensors that its members exchange.

import type { Port } from "./data.ts";
import { groupedItems } from "./grouping.ts";
import { callItem, containsNode, graphItem, nodeItem, portsOf, type Item } from "./items.ts";
import { portFor, type Model } from "./model.ts";

// A tensor with more consumers than this in a level is drawn to the first only; the others get stubs.
const WIDE = 5;
const MAX_PILLS = 8;

/** An argument, a result, or a tensor from outside, at the border of a level. */
export interface Pill {
  name: string;
  tensors: number[];
  named: boolean; // a forward argument or a result, not just a tensor
}

/** One end of an edge: an item, an input pill or an output pill, by position. */
export interface End {
  at: "item" | "input" | "output";
  index: number;
}

export interface Edge {
  from: End;
  to: End;
  tensors: number[];
}

export interface Stub {
  tensor: number;
  item: number;
}

export interface Level {
  key: string;
  items: Item[];
  inputs: Pill[];
  outputs: Pill[];
  edges: Edge[];
  stubs: Stub[];
  /** Calls without nodes: the exporter removed or folded what they computed. */
  empty: number[];
}

interface Link {
  tensor: number;
  from: number; // -1: from outside
  to: number[];
  leaves: boolean;
}

export class Levels {
  private readonly known = new Map<string, Level>();
  private readonly itemsByKey = new Map<string, Item>();
  private oddByCall: Map<number, string[]> | null = null;

  /** The root call with all nodes of the main graph. */
  readonly root: Item;

  constructor(readonly model: Model) {
    this.root = callItem(model, 0, 0, model.nodesOfGraph(0), []);
    this.itemsByKey.set(this.root.key, this.root);
  }


  levelOf(item: Item): Level {
    let level = this.known.get(item.key);
    if (!level) {
      this.known.set(item.key, (level = this.build(item)));
      for (const inner of level.items) this.itemsByKey.set(inner.key, inner);
    }
    return level;
  }

  /** An item of a level that was built before. */
  itemByKey(key: string): Item | undefined {
    return this.itemsByKey.get(key);
  }

  /** The differences of a call from its siblings of the same class. */
  differences(call: number): string[] {
    if (!this.oddByCall) {
      this.oddByCall = new Map();
      for (const repeat of this.model.data.repeats) {
        for (const odd of repeat.odd) if (!this.oddByCall.has(odd.call)) this.oddByCall.set(odd.call, odd.differences);
      }
    }
    return this.oddByCall.get(call) ?? [];
  }

  /** The keys to open so that a call or a node is drawn; the last entry is the key of its own box. */
  pathTo(target: { call: number } | { node: number }): string[] {
    const model = this.model;
    const node = "node" in target ? target.node : this.firstNode(target.call);
    if (node === undefined) return [];
    const call = "call" in target ? target.call : -1;
    if (call === 0) return [this.root.key];
    const path: string[] = [];
    let current = this.root;
    for (let depth = 0; depth < 200; depth++) {
      path.push(current.key);
      if ((call >= 0 && current.call === call) || (call < 0 && current.node === node)) return path;
      const next = this.levelOf(current).items.find((item) => {
        if (item.kind === "graph") return reachesGraph(model, node, item.graph);
        const lifted = liftThrough(model, item.graph, node);
        return lifted >= 0 && containsNode(item, lifted);
      });
      if (!next) return [];
      current = next;
    }
    return [];
  }

  private firstNode(call: number): number | undefined {
    const nodes = this.model.nodesInside(call);
    return nodes.find((node) => this.model.data.nodes.graph[node] === 0) ?? nodes[0];
  }

  private build(item: Item): Level {
    const model = this.model;
    if (item.kind === "node") {
      const items = model.graphsOf(item.node).map((graph) => graphItem(model, graph));
      return { key: item.key, items, inputs: [], outputs: [], edges: [], stubs: [], empty: [] };
    }
    const raw = item.members.length ? item.members : this.rawItems(item);
    const links = linksOf(model, item.graph, raw);
    const targets: Set<number>[] = raw.map(() => new Set());
    for (const link of links) if (link.from >= 0) for (const to of link.to) targets[link.from].add(to);
    // The members of a stack or a group are shown one by one.
    const items = groupedItems(model, raw, targets.map((set) => [...set]), !item.members.length);
    const empty = item.kind === "call" ? model.childCalls(item.call).filter((call) => model.call(call).nodes === 0) : [];
    return { key: item.key, items, empty, ...connections(model, item, items, raw, links) };
  }

  /** The child calls with nodes in the graph of the item, and the nodes that belong to none of them. */
  private rawItems(item: Item): Item[] {
    const model = this.model;
    const base = item.kind === "call" ? item.call : commonCall(model, item.nodes);
    const childByCall = new Map<number, number>();
    const calls = new Map<number, number[]>();
    const items: Item[] = [];
    for (const node of item.nodes) {
      const child = childOf(model, base, model.data.nodes.call[node], childByCall);
      if (child < 0) {
        items.push(nodeItem(model, node));
        continue;
      }
      const nodes = calls.get(child);
      if (nodes) {
        nodes.push(node);
      } else {
        const own = [node];
        calls.set(child, own);
        items.push(callItem(model, child, item.graph, own, this.differences(child)));
      }
    }
    return items;
  }
}

/** The call directly inside `base` that contains `call`; -1 for `base` itself and for calls outside of it. */
function childOf(model: Model, base: number, call: number, known: Map<number, number>): number {
  const found = known.get(call);
  if (found !== undefined) return found;
  const parent = model.call(call)?.parent ?? -1;
  let child = -1;
  if (call > base && parent >= 0) child = parent === base ? call : childOf(model, base, parent, known);
  known.set(call, child);
  return child;
}

/** The innermost call that contains the owners of all nodes. */
function commonCall(model: Model, nodes: number[]): number {
  let common = nodes.length ? model.data.nodes.call[nodes[0]] : 0;
  for (const node of nodes) {
    while (common > 0 && !model.callContains(common, model.data.nodes.call[node])) common = model.call(common).parent;
  }
  return Math.max(common, 0);
}

/** The node of `graph` through which `node` is reached, by subgraphs and local functions. */
function liftThrough(model: Model, graph: number, node: number): number {
  let current = node;
  for (let depth = 0; depth < 200 && current >= 0; depth++) {
    const at = model.data.nodes.graph[current];
    if (at === graph) return current;
    current = model.nodeOfGraph(at);
  }
  return -1;
}

function reachesGraph(model: Model, node: number, graph: number): boolean {
  return liftThrough(model, graph, node) >= 0;
}

/** The tensors that the items exchange with each other and with the outside. */
function linksOf(model: Model, graph: number, items: Item[]): Link[] {
  const { tensors, nodes, graphs } = model.data;
  const itemOf = new Map<number, number>();
  items.forEach((item, i) => item.nodes.forEach((node) => itemOf.set(node, i)));
  const links = new Map<number, Link>();
  const linkFor = (tensor: number): Link => {
    let link = links.get(tensor);
    if (!link) {
      const producer = tensors.producer[tensor];
      links.set(tensor, (link = { tensor, from: itemOf.get(producer) ?? -1, to: [], leaves: false }));
    }
    return link;
  };
  const results = new Set(graphs[graph].outputs);
  items.forEach((item, i) => {
    for (const node of item.nodes) {
      for (const tensor of model.reads(node)) {
        const link = linkFor(tensor);
        if (link.from !== i && link.to.at(-1) !== i && !link.to.includes(i)) link.to.push(i);
      }
      for (const tensor of nodes.outputs[node]) {
        if (tensor < 0) continue;
        const outside = model.consumers(tensor).some((consumer) => !itemOf.has(model.liftedTo(graph, consumer)));
        if (outside || results.has(tensor)) linkFor(tensor).leaves = true;
      }
    }
  });
  return [...links.values()].filter((link) => link.to.length || link.leaves);
}

function connections(model: Model, owner: Item, items: Item[], raw: Item[], links: Link[]): Omit<Level, "items" | "empty" | "key"> {
  const shownAt = new Map<Item, number>();
  items.forEach((item, i) => {
    shownAt.set(item, i);
    for (const member of flattened(item)) shownAt.set(member, i);
  });
  const shown = raw.map((item) => shownAt.get(item)!);
  const ports = portsOf(model, owner);
  const entering = links.filter((link) => link.from < 0 && link.to.length);
  const leaving = links.filter((link) => link.leaves && link.from >= 0);
  const inputs = pills(model, ports.inputs, entering.map((link) => link.tensor));
  const outputs = pills(model, ports.outputs, leaving.map((link) => link.tensor));
  const inputOf = pillIndex(inputs);
  const outputOf = pillIndex(outputs);
  const edges = new Map<string, Edge>();
  const stubs: Stub[] = [];
  const connect = (from: End, to: End, tensor: number): void => {
    const key = `${from.at}${from.index}>${to.at}${to.index}`;
    const edge = edges.get(key);
    if (edge) edge.tensors.push(tensor);
    else edges.set(key, { from, to, tensors: [tensor] });
  };
  for (const { tensor, from, to, leaves } of links) {
    const start: End =
      from < 0 ? { at: "input", index: inputOf.get(tensor)! } : { at: "item", index: shown[from] };
    const targets = [...new Set(to.map((i) => shown[i]))].filter((i) => start.at !== "item" || i !== start.index);
    targets.sort((a, b) => a - b);
    targets.forEach((target, i) => {
      if (targets.length > WIDE && i > 0) stubs.push({ tensor, item: target });
      else connect(start, { at: "item", index: target }, tensor);
    });
    if (leaves && from >= 0) connect(start, { at: "output", index: outputOf.get(tensor)! }, tensor);
  }
  return { inputs, outputs, edges: [...edges.values()], stubs };
}

function flattened(item: Item): Item[] {
  return item.members.flatMap((member) => [member, ...flattened(member)]);
}

/** Named ports first, in the order of the arguments; what is left over when there are many shares one pill. */
function pills(model: Model, ports: Port[], tensors: number[]): Pill[] {
  const order = new Map<Port, number>(ports.map((port, i) => [port, i]));
  const named: { port: Port; tensor: number }[] = [];
  const rest: number[] = [];
  for (const tensor of tensors) {
    const port = portFor(ports, tensor);
    if (port) named.push({ port, tensor });
    else rest.push(tensor);
  }
  named.sort((a, b) => order.get(a.port)! - order.get(b.port)!);
  const single = (name: string, tensor: number, isNamed: boolean): Pill => ({ name, tensors: [tensor], named: isNamed });
  const out = named.slice(0, MAX_PILLS).map(({ port, tensor }) => single(port.name, tensor, true));
  const others = [...named.slice(MAX_PILLS).map(({ tensor }) => tensor), ...rest];
  if (out.length + others.length <= MAX_PILLS) {
    out.push(...others.map((tensor) => single(model.data.tensors.name[tensor], tensor, false)));
  } else {
    out.push({ name: `${others.length} ${out.length ? "more " : ""}tensors`, tensors: others, named: false });
  }
  return out;
}

function pillIndex(list: Pill[]): Map<number, number> {
  return new Map(list.flatMap((pill, i) => pill.tensors.map((tensor) => [tensor, i] as const)));
}
