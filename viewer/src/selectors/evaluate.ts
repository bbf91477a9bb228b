// Evaluate selectors: the calls and the nodes that they select. The same as modelexport/analysis/query/selector_eval.py,
// error texts included. Calls, modules and nodes are positions in the arrays of the data.

import { KINDS, type Module, type PageData } from "../data.ts";
import { NODE_FIELDS, SelectorError, type Expression, type Term, parseExpression, shown, termText, termsOf } from "./parser.ts";
import { repr } from "./python_text.ts";
import { closeMatches } from "./similar.ts";

const MAX_CANDIDATES = 2_000;

export class Selector {
  readonly expression: Expression;

  constructor(readonly text: string) {
    this.expression = parseExpression(text);
  }

  get picksNodes(): boolean {
    return termsOf(this.expression).some((term) => NODE_FIELDS.has(term.field));
  }

  /** The calls that the selector names, in execution order, without the calls inside of them. */
  calls(index: SelectorIndex): number[] {
    const nodeTerm = termsOf(this.expression).find((term) => NODE_FIELDS.has(term.field));
    if (nodeTerm) {
      throw new SelectorError(
        `${shown(this.text)} has '${termText(nodeTerm)}', which picks nodes: select modules or classes`,
      );
    }
    const { named, covered } = selectCalls(this.expression, index);
    if (covered.size && !named.size) {
      throw new SelectorError(
        `${shown(this.text)} selects no module call, it only excludes some: write '** and …'`,
      );
    }
    if (!named.size) throw this.emptySelection(index, "no module call");
    return [...named].sort((a, b) => a - b);
  }

  /** The nodes of all selected calls, in graph order; with contributors, a node belongs to several calls. */
  nodes(index: SelectorIndex, contributors = true): number[] {
    const found = selectNodes(this.expression, index, contributors);
    if (!found.size) throw this.emptySelection(index, "no node");
    return [...found].sort((a, b) => a - b);
  }

  /** The terms that match nothing: usually typing errors. */
  unmatched(index: SelectorIndex): string[] {
    const terms = termsOf(this.expression).filter((term) => !index.hasMatch(term));
    return [...new Set(terms.map(termText))];
  }

  private emptySelection(index: SelectorIndex, what: string): SelectorError {
    const terms = termsOf(this.expression);
    const unmatched = terms.find((term) => !index.hasMatch(term));
    if (unmatched) {
      const near = index.similarNames(unmatched);
      const hint = near.length ? `did you mean ${near.map(repr).join(" or ")}?` : "modelexport tree lists the modules";
      return new SelectorError(
        `${shown(this.text)} picks ${what}: nothing matches '${termText(unmatched)}'; ${hint}`,
      );
    }
    const uncalled = terms.find((term) => !NODE_FIELDS.has(term.field) && !index.named(term).size);
    if (uncalled) {
      return new SelectorError(`${shown(this.text)} picks ${what}: '${termText(uncalled)}' was never called`);
    }
    return new SelectorError(
      `${shown(this.text)} picks ${what}, though each of its terms matches something: nothing matches all of ` +
        "them, or the optimizer removed the nodes",
    );
  }
}

/** The data, indexed for the terms of a selector. */
export class SelectorIndex {
  readonly callCount: number;
  readonly nodeCount: number;
  private readonly callsOfModule = new Map<number, number[]>();

  constructor(readonly data: PageData) {
    this.callCount = data.calls.length;
    this.nodeCount = data.nodes.id.length;
    data.calls.forEach((call, i) => {
      const list = this.callsOfModule.get(call.module);
      if (list) list.push(i);
      else this.callsOfModule.set(call.module, [i]);
    });
  }

  /** The calls that a term names. */
  named(term: Term): Set<number> {
    const { calls, modules } = this.data;
    const match = cached(term);
    const found = new Set<number>();
    if (term.field === "tag") {
      // A hidden module has the tag of its parent, whose calls include it.
      calls.forEach((call, i) => {
        if (modules[call.module].visible && match(call.tag)) found.add(i);
      });
    }
    if (term.field === "call" || (term.field === "name" && term.pattern.text.includes("@"))) {
      calls.forEach((call, i) => {
        if (match(call.id) || match(this.numberedId(i))) found.add(i);
      });
    }
    const uncalled = new Set<string>();
    modules.forEach((module, i) => {
      if (!this.moduleNames(term, module, i).some(match)) return;
      const calledAt = this.callsOfModule.get(i);
      if (calledAt) calledAt.forEach((call) => found.add(call));
      else uncalled.add(module.path);
    });
    if (uncalled.size) this.addCalledBelow(uncalled, found);
    return found;
  }

  /** These calls and all calls inside of them. */
  inside(named: Set<number>): Set<number> {
    const inside = new Set(named);
    // A call comes after its caller.
    this.data.calls.forEach((call, i) => {
      if (inside.has(call.parent)) inside.add(i);
    });
    return inside;
  }

  hasMatch(term: Term): boolean {
    const match = cached(term);
    for (const name of this.names(term.field)) if (match(name)) return true;
    return !NODE_FIELDS.has(term.field) && this.named(term).size > 0;
  }

  similarNames(term: Term): string[] {
    const names = new Set<string>();
    for (const name of this.names(term.field)) {
      names.add(name);
      if (names.size >= MAX_CANDIDATES) break;
    }
    return closeMatches(Array.from(term.pattern.text).slice(0, 200).join(""), [...names], 2, 0.6);
  }

  nodeNames(field: string, node: number): string[] {
    const { nodes, strings } = this.data;
    if (field === "kind") return [KINDS[nodes.kind[node]]];
    if (field === "node") return [nodes.id[node]];
    const op = strings[nodes.op[node]];
    const domain = strings[nodes.domain[node]];
    return domain ? [`${domain}::${op}`, op] : [op];
  }

  private numberedId(call: number): string {
    const { id, module } = this.data.calls[call];
    return id === this.data.modules[module].path ? `${id}@0` : id;
  }

  private moduleNames(term: Term, module: Module, index: number): string[] {
    if (term.field === "class") return [module.class, module.qualifiedClass];
    if (term.field === "name" || term.field === "path") return [module.path, ...module.aliases];
    // A tag names a call, except for a module that was never called.
    return term.field === "tag" && module.visible && !this.callsOfModule.has(index) ? [module.tag] : [];
  }

  /** The outermost calls inside modules that are never called themselves, such as a ModuleList. */
  private addCalledBelow(uncalled: Set<string>, found: Set<number>): void {
    const { modules } = this.data;
    const called = new Set([...this.callsOfModule.keys()].map((module) => modules[module].path));
    for (const [module, calls] of this.callsOfModule) {
      for (let outer = parentPath(modules[module].path); outer !== null; outer = parentPath(outer)) {
        if (uncalled.has(outer)) calls.forEach((call) => found.add(call));
        else if (!called.has(outer)) continue;
        break;
      }
    }
  }

  private *names(field: string): Iterable<string> {
    if (NODE_FIELDS.has(field)) {
      for (let node = 0; node < this.nodeCount; node++) yield* this.nodeNames(field, node);
      return;
    }
    for (const module of this.data.modules) {
      if (field === "class") yield* [module.class, module.qualifiedClass];
      else if (field !== "tag") yield* [module.path, ...module.aliases];
      else if (module.visible) yield module.tag;
    }
  }
}

function parentPath(path: string): string | null {
  if (path === "") return null;
  const dot = path.lastIndexOf(".");
  return dot < 0 ? "" : path.slice(0, dot);
}

function cached(term: Term): (name: string) => boolean {
  const known = new Map<string, boolean>();
  return (name) => {
    let matched = known.get(name);
    if (matched === undefined) known.set(name, (matched = term.pattern.matches(name)));
    return matched;
  };
}

/**
 * The calls that an expression names, and those with all calls inside of them, which it covers.
 *
 * `encoder.layer.0 and class:Linear` names the Linear calls inside of the layer: `and` names what one part names and all
 * parts cover. `not` names nothing.
 */
function selectCalls(expression: Expression, index: SelectorIndex): { named: Set<number>; covered: Set<number> } {
  if (expression.type === "term") {
    const named = index.named(expression);
    return { named, covered: index.inside(named) };
  }
  if (expression.type === "not") {
    const { covered } = selectCalls(expression.part, index);
    return { named: new Set(), covered: without(index.callCount, covered) };
  }
  const parts = expression.parts.map((part) => selectCalls(part, index));
  const named = union(parts.map((part) => part.named));
  if (expression.type === "or") return { named, covered: union(parts.map((part) => part.covered)) };
  const covered = intersection(parts.map((part) => part.covered));
  return { named: intersection([named, covered]), covered };
}

function selectNodes(expression: Expression, index: SelectorIndex, contributors: boolean): Set<number> {
  if (expression.type === "not") return without(index.nodeCount, selectNodes(expression.part, index, contributors));
  if (expression.type !== "term") {
    const parts = expression.parts.map((part) => selectNodes(part, index, contributors));
    return expression.type === "and" ? intersection(parts) : union(parts);
  }
  const found = new Set<number>();
  if (NODE_FIELDS.has(expression.field)) {
    const match = cached(expression);
    for (let node = 0; node < index.nodeCount; node++) {
      if (index.nodeNames(expression.field, node).some(match)) found.add(node);
    }
    return found;
  }
  const { nodes } = index.data;
  const inside = index.inside(index.named(expression));
  nodes.call.forEach((call, node) => {
    const others = contributors ? (nodes.contributors[node] ?? []) : [];
    if (inside.has(call) || others.some((other) => inside.has(other))) found.add(node);
  });
  return found;
}

function without(count: number, excluded: Set<number>): Set<number> {
  const rest = new Set<number>();
  for (let i = 0; i < count; i++) if (!excluded.has(i)) rest.add(i);
  return rest;
}

function union(sets: Set<number>[]): Set<number> {
  const all = new Set<number>();
  for (const set of sets) for (const value of set) all.add(value);
  return all;
}

function intersection(sets: Set<number>[]): Set<number> {
  const [first, ...others] = sets;
  return new Set([...first].filter((value) => others.every((set) => set.has(value))));
}
