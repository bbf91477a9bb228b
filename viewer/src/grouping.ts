// Keep a level readable: equal calls become one stack, long runs of nodes and long levels become groups.

import { groupItem, stackItem, type Item } from "./items.ts";
import type { Model } from "./model.ts";

const MAX_ITEMS = 80;
const MAX_CHUNKS = 40;
// Beside calls, this many nodes are drawn one by one; with more, runs of at least MIN_RUN nodes become groups.
const MAX_NODES_BESIDE_CALLS = 16;
const MIN_RUN = 4;
// Stacks of few calls that contain no others hide more (query, key, value) than they save.
const MIN_STACK_OF_LEAVES = 4;
const MAX_SPLIT_STACK = 200;

/** `edges` lists for each item the items that consume its tensors. */
export function groupedItems(model: Model, items: Item[], edges: number[][], withStacks: boolean): Item[] {
  const stacked = withStacks ? withStacksOf(model, items, edges) : items.map((_, i) => [i]);
  let merged = ordered(stacked, items, edges).map((indexes) => indexes.map((i) => items[i]));
  let result = merged.map((members) => (members.length === 1 ? members[0] : stackItem(model, members)));
  if (result.some((item) => item.kind !== "node")) {
    if (result.filter((item) => item.kind === "node").length > MAX_NODES_BESIDE_CALLS) result = groupRuns(model, result);
  }
  return result.length > MAX_ITEMS ? groupChunks(model, result) : result;
}

/** Sets of item indexes, each to be shown as one; most have one member. */
function withStacksOf(model: Model, items: Item[], edges: number[][]): number[][] {
  const indexOfCall = new Map<number, number>();
  items.forEach((item, i) => {
    if (item.kind === "call") indexOfCall.set(item.call, i);
  });
  const incoming: number[][] = items.map(() => []);
  edges.forEach((targets, from) => targets.forEach((to) => incoming[to].push(from)));
  const taken = new Set<number>();
  const stacks: number[][] = [];
  for (const repeat of model.data.repeats) {
    const members = repeat.calls.map((call) => indexOfCall.get(call)).filter((i) => i !== undefined);
    if (members.length < 2 || members.some((i) => taken.has(i))) continue;
    for (const run of convexRuns(items, edges, incoming, members)) {
      const calls = run.filter((i) => items[i].kind === "call");
      const composite = calls.some((i) => model.childCalls(items[i].call).some((child) => model.call(child).nodes > 0));
      if (calls.length < (composite ? 2 : MIN_STACK_OF_LEAVES) || run.some((i) => taken.has(i))) continue;
      run.forEach((i) => taken.add(i));
      stacks.push(run.sort((a, b) => a - b));
    }
  }
  items.forEach((_, i) => {
    if (!taken.has(i)) stacks.push([i]);
  });
  return stacks;
}

/** Split members so that no other call lies on a path between two of the same run; nodes on such a path join it. */
function convexRuns(items: Item[], edges: number[][], incoming: number[][], members: number[]): number[][] {
  const all = closedRun(items, edges, incoming, members);
  if (all) return [all];
  if (members.length > MAX_SPLIT_STACK) return [];
  const runs: number[][] = [];
  let current: number[] = [];
  for (const member of members) {
    const extended = current.includes(member) ? current : closedRun(items, edges, incoming, [...current, member]);
    if (extended) {
      current = extended;
    } else {
      runs.push(current);
      current = [member];
    }
  }
  return [...runs, current];
}

function closedRun(items: Item[], edges: number[][], incoming: number[][], run: number[]): number[] | null {
  const inRun = new Set(run);
  const after = reachable(edges, inRun);
  const before = reachable(incoming, inRun);
  const between = [...after].filter((i) => before.has(i));
  return between.every((i) => items[i].kind === "node") ? [...run, ...between] : null;
}

function reachable(edges: number[][], start: Set<number>): Set<number> {
  const found = new Set<number>();
  const waiting = [...start];
  while (waiting.length) {
    for (const next of edges[waiting.pop()!]) {
      if (start.has(next) || found.has(next)) continue;
      found.add(next);
      waiting.push(next);
    }
  }
  return found;
}

/** The sets in topological order; among free ones, in graph order. Cycles are broken at the first set in graph order. */
function ordered(sets: number[][], items: Item[], edges: number[][]): number[][] {
  const setOf = new Int32Array(items.length);
  sets.forEach((set, i) => set.forEach((item) => (setOf[item] = i)));
  const position = sets.map((set) => Math.min(...set.map((i) => items[i].nodes[0])));
  const next: Set<number>[] = sets.map(() => new Set());
  edges.forEach((targets, from) => {
    for (const to of targets) if (setOf[to] !== setOf[from]) next[setOf[from]].add(setOf[to]);
  });
  const open = new Int32Array(sets.length);
  next.forEach((targets) => targets.forEach((to) => open[to]++));
  const byPosition = sets.map((_, i) => i).sort((a, b) => position[a] - position[b]);
  const done = new Uint8Array(sets.length);
  const out: number[][] = [];
  let first = 0;
  const free = new PriorityList(position);
  byPosition.forEach((i) => {
    if (!open[i]) free.push(i);
  });
  while (out.length < sets.length) {
    let current = free.pop();
    if (current === undefined) {
      while (done[byPosition[first]]) first++;
      current = byPosition[first];
    }
    if (done[current]) continue;
    done[current] = 1;
    out.push(sets[current]);
    for (const to of next[current]) if (--open[to] === 0 && !done[to]) free.push(to);
  }
  return out;
}

class PriorityList {
  private heap: number[] = [];

  constructor(private readonly priority: number[]) {}

  push(value: number): void {
    const { heap, priority } = this;
    let i = heap.push(value) - 1;
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (priority[heap[parent]] <= priority[heap[i]]) break;
      [heap[parent], heap[i]] = [heap[i], heap[parent]];
      i = parent;
    }
  }

  pop(): number | undefined {
    const { heap, priority } = this;
    const top = heap[0];
    const last = heap.pop();
    if (heap.length && last !== undefined) {
      heap[0] = last;
      for (let i = 0; ; ) {
        let smallest = i;
        for (const child of [2 * i + 1, 2 * i + 2]) {
          if (child < heap.length && priority[heap[child]] < priority[heap[smallest]]) smallest = child;
        }
        if (smallest === i) break;
        [heap[smallest], heap[i]] = [heap[i], heap[smallest]];
        i = smallest;
      }
    }
    return top;
  }
}

function groupRuns(model: Model, items: Item[]): Item[] {
  const out: Item[] = [];
  let run: Item[] = [];
  const flush = (): void => {
    if (run.length >= MIN_RUN) out.push(groupItem(model, run));
    else out.push(...run);
    run = [];
  };
  for (const item of items) {
    if (item.kind === "node") {
      run.push(item);
    } else {
      flush();
      out.push(item);
    }
  }
  flush();
  return out;
}

function groupChunks(model: Model, items: Item[]): Item[] {
  const size = Math.ceil(items.length / MAX_CHUNKS);
  const out: Item[] = [];
  for (let start = 0; start < items.length; start += size) {
    const members = items.slice(start, start + size);
    out.push(members.length === 1 ? members[0] : groupItem(model, members));
  }
  return out;
}
