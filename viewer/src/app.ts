// What the views share: the model, the state, and the actions on it.

import type { Theme } from "./colors.ts";
import { Levels } from "./levels.ts";
import type { Model } from "./model.ts";
import { ActiveOverlay, classOverlay } from "./overlays.ts";
import { NOTHING, Search, type Found } from "./search.ts";
import { sizesOf, totalsOf, type Size } from "./sizes.ts";
import type { Overlay } from "./data.ts";
import type { Selection, State, Store } from "./state.ts";

// At first, calls with at least this share of all nodes are open, while the graph has at most this many boxes.
const FIRST_SHARE = 0.4;
const FIRST_BOXES = 24;

export class App {
  readonly levels: Levels;
  readonly sizes: Size[];
  readonly overlays: Overlay[];
  theme: Theme = "light";
  found: Found = NOTHING;
  /** The subtrees of the search's results, for marks on closed boxes: the number of results in each call. */
  foundInCalls = new Map<number, number>();
  private readonly search: Search;
  private searched = "";
  private active = new Map<string, ActiveOverlay>();
  private sizeTotals = new Map<string, number[]>();
  private firstOpen: ReadonlySet<string> | null = null;

  constructor(
    readonly model: Model,
    readonly store: Store,
  ) {
    this.levels = new Levels(model);
    this.sizes = sizesOf(model);
    this.overlays = [...model.data.overlays, classOverlay(model)];
    this.search = new Search(model);
  }

  get state(): State {
    return this.store.state;
  }

  overlay(id = this.state.overlay): ActiveOverlay | null {
    const overlay = this.overlays.find((candidate) => candidate.id === id);
    if (!overlay) return null;
    const key = `${this.theme}|${id}`;
    let active = this.active.get(key);
    if (!active) this.active.set(key, (active = new ActiveOverlay(overlay, this.theme)));
    return active;
  }

  size(): Size {
    return this.sizes.find((size) => size.id === this.state.size) ?? this.sizes[0];
  }

  totals(size: Size): number[] {
    let totals = this.sizeTotals.get(size.id);
    if (!totals) this.sizeTotals.set(size.id, (totals = totalsOf(this.model, size)));
    return totals;
  }

  /** The keys of the open items. */
  get open(): ReadonlySet<string> {
    if (this.state.open) return this.state.open;
    this.firstOpen ??= this.openAtFirst();
    return this.firstOpen;
  }

  setOpen(keys: Iterable<string>): void {
    this.store.set({ open: new Set(keys) });
  }

  toggle(key: string): void {
    const open = new Set(this.open);
    if (!open.delete(key)) {
      open.add(key);
      this.openSingle(key, open);
    }
    this.store.set({ open, zoom: "" });
  }

  select(selection: Selection | null): void {
    this.store.set({ selection });
  }

  /** Select, and open what contains the selection. */
  reveal(selection: Selection): void {
    const path = this.pathTo(selection);
    const open = new Set(this.open);
    for (const key of path.slice(1, -1)) open.add(key);
    this.store.set({ selection, open, zoom: path.at(-1) ?? "" });
  }

  pathTo(selection: Selection): string[] {
    const { model } = this;
    if (selection.type === "call") return this.levels.pathTo({ call: selection.call });
    if (selection.type === "node") return this.levels.pathTo({ node: selection.node });
    if (selection.type === "tensor") {
      const producer = model.data.tensors.producer[selection.tensor];
      const node = producer >= 0 ? producer : model.consumers(selection.tensor)[0];
      return node === undefined ? [] : this.levels.pathTo({ node });
    }
    if (selection.type === "module") {
      const call = model.callsOfModule(selection.module)[0];
      return call === undefined ? [] : this.levels.pathTo({ call });
    }
    return [selection.key];
  }

  /** Search again if the query changed; whether it did. */
  updateSearch(): boolean {
    if (this.state.query === this.searched) return false;
    this.searched = this.state.query;
    this.found = this.search.run(this.searched);
    this.foundInCalls = new Map();
    const count = (call: number): void => {
      for (let at = call; at >= 0; at = this.model.call(at).parent) {
        this.foundInCalls.set(at, (this.foundInCalls.get(at) ?? 0) + 1);
      }
    };
    for (const call of this.found.calls) if (this.model.call(call).parent >= 0) count(this.model.call(call).parent);
    for (const node of this.found.nodes) if (this.model.data.nodes.call[node] >= 0) count(this.model.data.nodes.call[node]);
    return true;
  }

  /** The call that the selection is about; -1 if none. */
  selectedCall(): number {
    const { selection } = this.state;
    if (selection?.type === "call") return selection.call;
    if (selection?.type === "node") return this.model.data.nodes.call[selection.node];
    if (selection?.type === "module") return this.model.callsOfModule(selection.module)[0] ?? -1;
    if (selection?.type === "tensor") {
      const producer = this.model.data.tensors.producer[selection.tensor];
      return producer >= 0 ? this.model.data.nodes.call[producer] : -1;
    }
    return -1;
  }

  selectedModule(): number {
    const { selection } = this.state;
    if (selection?.type === "module") return selection.module;
    const call = this.selectedCall();
    return call >= 0 ? this.model.call(call).module : -1;
  }

  /** An open item whose level is a single openable item opens that too. */
  private openSingle(key: string, open: Set<string>): void {
    let item = this.levels.itemByKey(key);
    for (let depth = 0; item && depth < 8; depth++) {
      const { items } = this.levels.levelOf(item);
      const inner = items.length === 1 || item.kind === "node" ? items : [];
      const next = inner.filter((candidate) => candidate.kind !== "node");
      next.forEach((candidate) => open.add(candidate.key));
      item = next.length === 1 ? next[0] : undefined;
    }
  }

  /** Open the calls that most of the model is in, outermost first. */
  private openAtFirst(): ReadonlySet<string> {
    const open = new Set<string>();
    let level = [...this.levels.levelOf(this.levels.root).items];
    let count = level.length;
    while (level.length) {
      const next: typeof level = [];
      const calls = level.filter((item) => item.kind === "call").sort((a, b) => b.nodes.length - a.nodes.length);
      for (const item of calls) {
        if (item.nodes.length < FIRST_SHARE * this.levels.root.nodes.length) continue;
        const inner = this.levels.levelOf(item).items;
        if (count + inner.length - 1 > FIRST_BOXES) continue;
        count += inner.length - 1;
        open.add(item.key);
        next.push(...inner);
      }
      level = next;
    }
    return open;
  }
}
