// The data, indexed: who calls whom, who owns and consumes what. Indexes are built when they are first used.

import { SOURCE_WEIGHT, type Call, type Module, type PageData, type Port } from "./data.ts";

export class Model {
  readonly nodeCount: number;
  private consumerLists: number[][] | null = null;
  private ownLists: number[][] | null = null;
  private childLists: number[][] | null = null;
  private moduleChildLists: number[][] | null = null;
  private callLists: number[][] | null = null;
  private graphsByNode: Map<number, number[]> | null = null;
  private callIds: Map<string, number> | null = null;
  private nodeIds: Map<string, number> | null = null;
  private callersOfGraph: Map<number, number> | null = null;
  private captured = new Map<number, number[]>();

  constructor(readonly data: PageData) {
    this.nodeCount = data.nodes.id.length;
  }

  text(index: number): string {
    return this.data.strings[index] ?? "";
  }

  call(index: number): Call {
    return this.data.calls[index];
  }

  moduleOf(call: number): Module {
    return this.data.modules[this.data.calls[call].module];
  }

  /** The path of a call below its caller, as a short name: `layer.0`, `self`. */
  localName(call: number): string {
    const { id, parent } = this.data.calls[call];
    if (parent < 0) return this.moduleOf(call).class;
    const outer = this.moduleOf(parent).path;
    return outer && id.startsWith(outer + ".") ? id.slice(outer.length + 1) : id || this.moduleOf(call).class;
  }

  callById(id: string): number {
    this.callIds ??= new Map(this.data.calls.map((call, i) => [call.id, i]));
    return this.callIds.get(id) ?? -1;
  }

  nodeById(id: string): number {
    this.nodeIds ??= new Map(this.data.nodes.id.map((name, i) => [name, i]));
    return this.nodeIds.get(id) ?? -1;
  }

  childCalls(call: number): number[] {
    this.childLists ??= lists(this.data.calls.map((item) => item.parent), this.data.calls.length);
    return this.childLists[call];
  }

  childModules(module: number): number[] {
    this.moduleChildLists ??= lists(this.data.modules.map((item) => item.parent), this.data.modules.length);
    return this.moduleChildLists[module];
  }

  callsOfModule(module: number): number[] {
    this.callLists ??= lists(this.data.calls.map((item) => item.module), this.data.modules.length);
    return this.callLists[module];
  }

  ownNodes(call: number): number[] {
    this.ownLists ??= lists(this.data.nodes.call, this.data.calls.length);
    return this.ownLists[call];
  }

  /** All nodes of a call and the calls inside it, in graph order. */
  nodesInside(call: number): number[] {
    const found: number[] = [];
    const waiting = [call];
    while (waiting.length) {
      const current = waiting.pop()!;
      for (const node of this.ownNodes(current)) found.push(node);
      waiting.push(...this.childCalls(current));
    }
    return found.sort((a, b) => a - b);
  }

  /** The nodes that consume a tensor, in any graph. */
  consumers(tensor: number): number[] {
    if (!this.consumerLists) {
      const all: number[][] = this.data.tensors.name.map(() => []);
      this.data.nodes.inputs.forEach((inputs, node) => {
        for (const input of inputs) if (input >= 0 && all[input].at(-1) !== node) all[input].push(node);
      });
      this.consumerLists = all;
    }
    return this.consumerLists[tensor];
  }

  /** The subgraphs of a node, or the local function that it calls. */
  graphsOf(node: number): number[] {
    if (!this.graphsByNode) {
      const owned = new Map<number, number[]>();
      this.data.graphs.forEach((graph, i) => {
        if (graph.owner >= 0) owned.set(graph.owner, [...(owned.get(graph.owner) ?? []), i]);
      });
      for (const node of Object.keys(this.data.nodes.function)) {
        owned.set(Number(node), [...(owned.get(Number(node)) ?? []), this.data.nodes.function[node]]);
      }
      this.graphsByNode = owned;
    }
    return this.graphsByNode.get(node) ?? [];
  }

  /** The node through which a subgraph or a local function is reached; -1 for the main graph. */
  nodeOfGraph(graph: number): number {
    const owner = this.data.graphs[graph].owner;
    if (owner >= 0 || graph === 0) return owner;
    if (!this.callersOfGraph) {
      this.callersOfGraph = new Map();
      for (const node of Object.keys(this.data.nodes.function)) {
        const called = this.data.nodes.function[node];
        if (!this.callersOfGraph.has(called)) this.callersOfGraph.set(called, Number(node));
      }
    }
    return this.callersOfGraph.get(graph) ?? -1;
  }

  nodesOfGraph(graph: number): number[] {
    const found: number[] = [];
    this.data.nodes.graph.forEach((value, node) => {
      if (value === graph) found.push(node);
    });
    return found;
  }

  /** The node of `graph` that is or owns this node; -1 if there is none. */
  liftedTo(graph: number, node: number): number {
    let current = node;
    while (current >= 0 && this.data.nodes.graph[current] !== graph) {
      current = this.data.graphs[this.data.nodes.graph[current]].owner;
    }
    return current;
  }

  /** The tensors that a node consumes, with those that its subgraphs take from outside. Weights are left out. */
  reads(node: number): number[] {
    const direct = this.data.nodes.inputs[node];
    const graphs = this.graphsOf(node);
    const all = graphs.length ? [...direct, ...this.capturedBy(node, graphs)] : direct;
    return all.filter((tensor) => tensor >= 0 && this.data.tensors.source[tensor] !== SOURCE_WEIGHT);
  }

  /** The initializers that a node consumes. */
  weightsOf(node: number): number[] {
    return this.data.nodes.inputs[node].filter(
      (tensor) => tensor >= 0 && this.data.tensors.source[tensor] === SOURCE_WEIGHT,
    );
  }

  callContains(outer: number, inner: number): boolean {
    let current = inner;
    while (current > outer) current = this.data.calls[current].parent;
    return current === outer;
  }

  describeTensor(tensor: number): string {
    const { dtype, shape } = this.data.tensors;
    return [this.text(shape[tensor]).replaceAll(" x ", "×"), this.text(dtype[tensor])].filter(Boolean).join(" ");
  }

  private capturedBy(node: number, graphs: number[]): number[] {
    const known = this.captured.get(node);
    if (known) return known;
    const found = new Set<number>();
    for (const graph of graphs) {
      if (this.data.graphs[graph].owner !== node) continue; // a function captures nothing
      const formal = new Set(this.data.graphs[graph].inputs);
      const inner = this.nodesOfGraph(graph);
      const outputs = this.data.graphs[graph].outputs;
      for (const tensor of [...inner.flatMap((i) => this.reads(i)), ...outputs]) {
        if (tensor < 0 || formal.has(tensor) || this.data.tensors.source[tensor] === SOURCE_WEIGHT) continue;
        const producer = this.data.tensors.producer[tensor];
        if (producer >= 0 && this.liftedTo(graph, producer) >= 0) continue;
        found.add(tensor);
      }
    }
    const result = [...found];
    this.captured.set(node, result);
    return result;
  }
}

/** The port of a list that is about a tensor. */
export function portFor(ports: Port[], tensor: number): Port | undefined {
  return ports.find((port) => port.tensor === tensor) ?? ports.find((port) => port.standIn === tensor);
}

function lists(keys: number[], count: number): number[][] {
  const all: number[][] = Array.from({ length: count }, () => []);
  keys.forEach((key, i) => {
    if (key >= 0) all[key].push(i);
  });
  return all;
}
