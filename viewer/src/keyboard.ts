// Keys that work everywhere on the page, and the list of all keys.

import { h } from "./dom.ts";

export const KEYS: [keys: string, what: string][] = [
  ["/", "search"],
  ["n, Shift+n", "next result, previous result"],
  ["g, m, t", "graph, map, table"],
  ["o, Shift+o", "next overlay, previous overlay"],
  ["s", "next size"],
  ["e", "tree of modules"],
  ["d", "details"],
  ["f", "fit everything"],
  ["z", "zoom to the selection"],
  ["+, -", "zoom in, zoom out"],
  ["c", "close all levels"],
  ["Arrows", "move between boxes, rows or cells"],
  ["Enter", "open or close a box, zoom the map, show a row"],
  ["Space", "select"],
  ["Backspace", "zoom the map out"],
  ["Esc", "close a list or dialog, clear the selection"],
  ["?", "this list"],
];

export type Actions = Record<string, () => void>;

/** Run the action of a key, unless the key is typed into a field. */
export function listenForKeys(actions: Actions): void {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target as Element | null;
    if (target?.closest("input, select, textarea, dialog[open]")) return;
    const action = Object.hasOwn(actions, event.key) ? actions[event.key] : undefined;
    if (!action) return;
    event.preventDefault();
    action();
  });
}

export function keyList(): HTMLElement {
  return h(
    "dl",
    { class: "keys" },
    ...KEYS.flatMap(([keys, what]) => [h("dt", {}, ...keys.split(", ").flatMap((key, i) => [i > 0 && " ", h("kbd", {}, key)])), h("dd", {}, what)]),
  );
}
