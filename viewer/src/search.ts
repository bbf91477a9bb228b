// Search: what a query selects as a selector, and the names that contain it.

import type { Model } from "./model.ts";
import { Selector, SelectorIndex } from "./selectors/evaluate.ts";
import { SelectorError } from "./selectors/parser.ts";
import type { Selection } from "./state.ts";

const MAX_RESULTS = 500;
// What makes a query a selector rather than a part of a name.
const SELECTOR_SYNTAX = /[*?[\]()"'/:@]|\b(and|or|not)\b/;

export interface Found {
  /** At most MAX_RESULTS, selected ones before those whose name contains the query. */
  results: Selection[];
  count: number;
  calls: ReadonlySet<number>;
  nodes: ReadonlySet<number>;
  summary: string;
  error: string;
}

export const NOTHING: Found = { results: [], count: 0, calls: new Set(), nodes: new Set(), summary: "", error: "" };

export class Search {
  private index: SelectorIndex | null = null;

  constructor(private readonly model: Model) {}

  run(query: string): Found {
    const text = query.trim();
    if (!text) return NOTHING;
    const calls = new Set<number>();
    const nodes = new Set<number>();
    let error = "";
    let selected = "";
    try {
      selected = this.select(query, calls, nodes);
    } catch (problem) {
      if (!(problem instanceof SelectorError)) throw problem;
      error = problem.message;
    }
    const found: Selection[] = [
      ...[...calls].map((call): Selection => ({ type: "call", call })),
      ...[...nodes].map((node): Selection => ({ type: "node", node })),
    ];
    const byName = this.containing(text.toLowerCase(), calls, nodes);
    for (const result of byName) {
      if (result.type === "call") calls.add(result.call);
      if (result.type === "node") nodes.add(result.node);
    }
    found.push(...byName);
    if (byName.length && !SELECTOR_SYNTAX.test(text)) error = "";
    const containing = byName.length ? `${byName.length} ${selected ? "more " : ""}with “${text.slice(0, 40)}” in the name` : "";
    const summary = [selected, containing].filter(Boolean).join(", ");
    return { results: found.slice(0, MAX_RESULTS), count: found.length, calls, nodes, summary, error };
  }

  private select(query: string, calls: Set<number>, nodes: Set<number>): string {
    this.index ??= new SelectorIndex(this.model.data);
    const selector = new Selector(query);
    const count = (size: number, noun: string): string => `${size} ${noun}${size === 1 ? "" : "s"}`;
    if (selector.picksNodes) {
      selector.nodes(this.index).forEach((node) => nodes.add(node));
      return count(nodes.size, "node");
    }
    selector.calls(this.index).forEach((call) => calls.add(call));
    return count(calls.size, "call");
  }

  private containing(text: string, calls: Set<number>, nodes: Set<number>): Selection[] {
    const { data } = this.model;
    const found: Selection[] = [];
    data.calls.forEach((call, i) => {
      const name = data.modules[call.module].class;
      if (!calls.has(i) && `${call.id} ${name}`.toLowerCase().includes(text)) found.push({ type: "call", call: i });
    });
    data.nodes.id.forEach((id, node) => {
      if (nodes.has(node)) return;
      const name = this.model.text(data.nodes.name[node]);
      if (id.toLowerCase().includes(text) || name.toLowerCase().includes(text)) found.push({ type: "node", node });
    });
    data.tensors.name.forEach((name, tensor) => {
      // The first output of a node has the node's name.
      const producer = data.tensors.producer[tensor];
      const isNode = producer >= 0 && data.nodes.outputs[producer][0] === tensor;
      if (!isNode && name.toLowerCase().includes(text)) found.push({ type: "tensor", tensor });
    });
    return found;
  }
}
