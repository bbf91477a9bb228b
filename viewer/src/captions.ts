// What a box says: the name, the class or operator, and how much is inside.

import { plural } from "./format.ts";
import { stackedCalls, type Item } from "./items.ts";
import type { Model } from "./model.ts";

export interface Caption {
  title: string;
  subtitle: string;
}

export function captionOf(model: Model, item: Item): Caption {
  const { data } = model;
  switch (item.kind) {
    case "call":
      return { title: model.localName(item.call), subtitle: item.call === 0 ? "" : model.moduleOf(item.call).class };
    case "node":
      return { title: model.text(data.nodes.op[item.node]), subtitle: "" };
    case "graph": {
      const graph = data.graphs[item.graph];
      return { title: graph.attribute || graph.function || graph.name || "graph", subtitle: contents(item) };
    }
    case "stack": {
      const calls = stackedCalls(item);
      return { title: `${model.moduleOf(calls[0]).class} ×${calls.length}`, subtitle: memberRange(model, calls) };
    }
    case "group":
      return { title: contents(item), subtitle: "" };
  }
}

/** "24 nodes", "12 calls, 3 nodes" */
function contents(item: Item): string {
  const calls = item.members.filter((member) => member.kind !== "node");
  if (!calls.length) return plural(item.nodes.length, "node");
  const count = calls.reduce((sum, member) => sum + (member.kind === "stack" ? stackedCalls(member).length : 1), 0);
  const nodes = item.members.length - calls.length;
  return plural(count, "call") + (nodes ? `, ${plural(nodes, "node")}` : "");
}

/** "layer.0 … layer.11" */
function memberRange(model: Model, calls: number[]): string {
  const first = model.localName(calls[0]);
  const last = model.localName(calls.at(-1)!);
  let common = 0;
  while (common < first.length && first[common] === last[common]) common++;
  const dot = first.lastIndexOf(".", common - 1) + 1;
  return dot > 0 && dot < last.length ? `${first}–${last.slice(dot)}` : `${first} … ${last}`;
}

export function ariaLabel(model: Model, item: Item): string {
  const { title, subtitle } = captionOf(model, item);
  const kind = { call: "module call", node: "node", stack: "stack of equal calls", group: "group", graph: "subgraph" };
  const id = item.kind === "call" ? model.call(item.call).id : item.kind === "node" ? model.data.nodes.id[item.node] : "";
  const parts = [title, subtitle, kind[item.kind], id && id !== title ? id.slice(0, 200) : ""];
  if (item.kind !== "node") parts.push(plural(item.nodes.length, "node"));
  if (item.odd.length) parts.push(`differs from its siblings: ${item.odd.join("; ")}`);
  return parts.filter(Boolean).join(", ");
}
