// Elements from names and attributes. Text is always a text node: nothing from a model file is parsed as markup, and
// characters that could disguise it are replaced.

import { printable } from "./format.ts";

type Child = Node | string | number | null | undefined | false;
type Attributes = Record<string, string | number | boolean | null | undefined | ((event: any) => void)>;

const SVG = "http://www.w3.org/2000/svg";
/** Attributes that users see or hear. */
const SHOWN = new Set(["title", "aria-label"]);

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  return filled(document.createElement(tag), attributes, children);
}

export function s<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
  for (const name of Object.keys(attributes)) {
    const value = attributes[name];
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : SHOWN.has(name) ? printable(String(value)) : String(value));
  }
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(printable(String(child))));
  }
  return element;
}

export function replaceChildren(parent: Element, ...children: Child[]): void {
  parent.replaceChildren();
  filled(parent, {}, children);
}

export function byId<E extends Element = HTMLElement>(id: string): E {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no element #${id}`);
  return element as unknown as E;
}

/** A button that shows only an icon: its name is for assistive technology and the tooltip. */
export function iconButton(icon: IconName, name: string, onClick: (event: MouseEvent) => void, key = ""): HTMLButtonElement {
  const title = key ? `${name} (${key})` : name;
  return h("button", { class: "icon-button", type: "button", "aria-label": name, title, click: onClick }, iconOf(icon));
}

const ICONS = {
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  fit: "M3 6V3h3M10 3h3v3M13 10v3h-3M6 13H3v-3",
  target: "M8 2v3M8 11v3M2 8h3M11 8h3M8 6.5a1.5 1.5 0 1 0 0 3a1.5 1.5 0 0 0 0-3",
  collapse: "M3 6h3V3M10 3v3h3M13 10h-3v3M6 13v-3H3",
  close: "M4 4l8 8M12 4l-8 8",
  up: "M4 10l4-4l4 4",
  down: "M4 6l4 4l4-4",
  search: "M7 3a4 4 0 1 0 0 8a4 4 0 0 0 0-8M10 10l3.5 3.5",
  theme: "M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11",
  note: "M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 0 0 0-11M8 7.2v3.6M8 5.2v.1",
  link: "M6.5 9.5l3-3M7 5l1.5-1.5a2.6 2.6 0 0 1 4 4L11 9M9 11l-1.5 1.5a2.6 2.6 0 0 1-4-4L5 7",
} as const;

export type IconName = keyof typeof ICONS;

export function iconOf(icon: IconName): SVGSVGElement {
  return s(
    "svg",
    { viewBox: "0 0 16 16", width: 16, height: 16, class: "icon", "aria-hidden": "true", focusable: "false" },
    s("path", { d: ICONS[icon] }),
  );
}
