// What a level of the graph shows: calls, nodes, stacks of equal calls, groups of items, subgraphs.

import type { Port } from "./data.ts";
import type { Model } from "./model.ts";

export type ItemKind = "call" | "node" | "stack" | "group" | "graph";

export interface Item {
  kind: ItemKind;
  /** Identifies the item in the state and in permalinks. */
  key: string;
  graph: number;
  /** The nodes of the item that lie in `graph`, in graph order. */
  nodes: number[];
  call: number; // for a call; -1 otherwise
  node: number; // for a node; -1 otherwise
  members: Item[]; // for a stack or a group
  odd: string[]; // how a call differs from its siblings of the same class
}

const EMPTY = { call: -1, node: -1, members: [] as Item[], odd: [] as string[] };

export function callItem(model: Model, call: number, graph: number, nodes: number[], odd: string[]): Item {
  const suffix = graph === 0 ? "" : `|g${graph}`;
  return { ...EMPTY, kind: "call", key: `c:${model.call(call).id}${suffix}`, graph, nodes, call, odd };
}

export function nodeItem(model: Model, node: number): Item {
  const { id, graph } = model.data.nodes;
  return { ...EMPTY, kind: "node", key: `n:${id[node]}`, graph: graph[node], nodes: [node], node };
}

export function graphItem(model: Model, graph: number): Item {
  return { ...EMPTY, kind: "graph", key: `s:${graph}`, graph, nodes: model.nodesOfGraph(graph) };
}

export function stackItem(model: Model, members: Item[]): Item {
  const first = members.find((member) => member.kind === "call")!;
  return combined("stack", `r:${model.call(first.call).id}`, members);
}

export function groupItem(model: Model, members: Item[]): Item {
  const nodes = allNodes(members);
  return combined("group", `g:${model.data.nodes.id[nodes[0]]}+${nodes.length}`, members);
}

function combined(kind: ItemKind, key: string, members: Item[]): Item {
  return { ...EMPTY, kind, key, graph: members[0].graph, nodes: allNodes(members), members };
}

function allNodes(members: Item[]): number[] {
  return members.flatMap((member) => member.nodes).sort((a, b) => a - b);
}

/** The calls of a stack. */
export function stackedCalls(item: Item): number[] {
  return item.members.filter((member) => member.kind === "call").map((member) => member.call);
}

/** Whether the item has an inner level. */
export function isOpenable(model: Model, item: Item): boolean {
  return item.kind !== "node" || model.graphsOf(item.node).length > 0;
}

/** The arguments and results by which the item is connected. */
export function portsOf(model: Model, item: Item): { inputs: Port[]; outputs: Port[] } {
  if (item.kind === "call") return model.call(item.call);
  if (item.kind === "stack") {
    const calls = stackedCalls(item).map((call) => model.call(call));
    return { inputs: calls.flatMap((call) => call.inputs), outputs: calls.flatMap((call) => call.outputs) };
  }
  if (item.kind === "graph") {
    const { inputs, outputs } = model.data.graphs[item.graph];
    const named = (tensor: number): Port => ({
      name: model.data.tensors.name[tensor],
      tensor,
      standIn: -1,
      dtype: "",
      shape: "",
    });
    return { inputs: inputs.map(named), outputs: outputs.filter((tensor) => tensor >= 0).map(named) };
  }
  return { inputs: [], outputs: [] };
}

export function containsNode(item: Item, node: number): boolean {
  let low = 0;
  let high = item.nodes.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (item.nodes[middle] === node) return true;
    if (item.nodes[middle] < node) low = middle + 1;
    else high = middle - 1;
  }
  return false;
}
