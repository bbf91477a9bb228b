// The state of the page, and its form in the URL fragment.

import type { Model } from "./model.ts";

export type View = "graph" | "map" | "table";
export type MapShape = "icicle" | "treemap";

export type Selection =
  | { type: "call"; call: number }
  | { type: "node"; node: number }
  | { type: "tensor"; tensor: number }
  | { type: "module"; module: number }
  | { type: "item"; key: string }; // a stack, a group or a subgraph

export interface State {
  view: View;
  /** The keys of open items; null for those that are open at first. */
  open: ReadonlySet<string> | null;
  selection: Selection | null;
  overlay: string;
  size: string;
  shape: MapShape;
  mapRoot: number; // the call that the map is zoomed to
  query: string;
  zoom: string; // the key of the item that the graph is zoomed to
}

export const INITIAL: State = {
  view: "graph",
  open: null,
  selection: null,
  overlay: "",
  size: "nodes",
  shape: "icicle",
  mapRoot: 0,
  query: "",
  zoom: "",
};

const MAX_OPEN = 2_000;

/** The state as a URL fragment without `#`; what equals the initial state is left out. */
export function encodeState(model: Model, state: State): string {
  const out = new URLSearchParams();
  const put = (name: string, value: string, initial: string): void => {
    if (value !== initial) out.set(name, value);
  };
  put("view", state.view, INITIAL.view);
  put("select", state.selection ? selectionText(model, state.selection) : "", "");
  put("overlay", state.overlay, INITIAL.overlay);
  put("size", state.size, INITIAL.size);
  put("map", state.shape, INITIAL.shape);
  if (state.mapRoot) out.set("in", model.call(state.mapRoot).id);
  put("search", state.query, "");
  put("zoom", state.zoom, "");
  if (state.open) out.set("open", [...state.open].slice(0, MAX_OPEN).map(encodeURIComponent).join(","));
  return out.toString();
}

/** The state of a URL fragment; what it does not know is ignored. */
export function decodeState(model: Model, fragment: string): State {
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  const get = (name: string): string => given.get(name) ?? "";
  const state: State = { ...INITIAL };
  const view = get("view");
  if (view === "map" || view === "table") state.view = view;
  if (get("map") === "treemap") state.shape = "treemap";
  state.overlay = get("overlay");
  state.size = get("size") || INITIAL.size;
  state.query = get("search").slice(0, 70_000);
  state.zoom = get("zoom");
  state.mapRoot = Math.max(model.callById(get("in")), 0);
  state.selection = parseSelection(model, get("select"));
  if (given.has("open")) {
    state.open = new Set(get("open").split(",").filter(Boolean).slice(0, MAX_OPEN).map(decodedKey));
  }
  return state;
}

export function selectionText(model: Model, selection: Selection): string {
  switch (selection.type) {
    case "call":
      return `c:${model.call(selection.call).id}`;
    case "node":
      return `n:${model.data.nodes.id[selection.node]}`;
    case "tensor":
      return `t:${model.data.tensors.name[selection.tensor]}`;
    case "module":
      return `m:${model.data.modules[selection.module].path}`;
    case "item":
      return selection.key;
  }
}

export function sameSelection(a: Selection | null, b: Selection | null): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

function parseSelection(model: Model, text: string): Selection | null {
  const name = text.slice(2);
  switch (text.slice(0, 2)) {
    case "c:":
      return known(model.callById(name), (call) => ({ type: "call", call }));
    case "n:":
      return known(model.nodeById(name), (node) => ({ type: "node", node }));
    case "t:":
      return known(model.data.tensors.name.indexOf(name), (tensor) => ({ type: "tensor", tensor }));
    case "m:":
      return known(model.data.modules.findIndex((module) => module.path === name), (module) => ({ type: "module", module }));
    case "r:":
    case "g:":
    case "s:":
      return { type: "item", key: text };
    default:
      return null;
  }
}

function known(index: number, make: (index: number) => Selection): Selection | null {
  return index >= 0 ? make(index) : null;
}

function decodedKey(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

type Listener = (state: State, before: State) => void;

/** Holds the state, tells listeners of changes, and keeps the URL fragment equal to it. */
export class Store {
  private listeners: Listener[] = [];
  private written: string;

  constructor(
    private readonly model: Model,
    private current: State,
  ) {
    this.written = encodeState(model, current);
    window.addEventListener("hashchange", () => {
      const fragment = location.hash.replace(/^#/, "");
      if (fragment !== this.written) this.replace(decodeState(this.model, fragment), false);
    });
  }

  get state(): State {
    return this.current;
  }

  listen(listener: Listener): void {
    this.listeners.push(listener);
  }

  set(change: Partial<State>): void {
    this.replace({ ...this.current, ...change }, true);
  }

  private replace(next: State, isStep: boolean): void {
    const before = this.current;
    this.current = next;
    for (const listener of this.listeners) listener(next, before);
    // A step that a reader would want to undo is one in the history.
    this.write(isStep && (before.view !== next.view || !sameSelection(before.selection, next.selection)));
  }

  private write(isStep: boolean): void {
    const fragment = encodeState(this.model, this.current);
    if (fragment === this.written) return;
    this.written = fragment;
    try {
      if (isStep) history.pushState(null, "", `#${fragment}`);
      else history.replaceState(null, "", `#${fragment}`);
    } catch {
      // A page inside another one (a notebook) may have no history of its own.
    }
  }
}
