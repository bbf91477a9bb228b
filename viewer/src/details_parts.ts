// The parts of the detail panel: sections, fields, and links to calls, nodes and tensors.

import type { App } from "./app.ts";
import { SOURCE_INPUT, SOURCE_WEIGHT, type Port, type Weight } from "./data.ts";
import { h } from "./dom.ts";
import { bytes, digits, grouped, shapeText } from "./format.ts";
import type { Selection } from "./state.ts";

const MAX_TEXT = 2_000;
const MAX_LINKS = 12;

export type Content = Node | string | null | undefined | false;

export function section(title: string, ...content: Content[]): HTMLElement | null {
  const present = content.filter((part) => part !== null && part !== undefined && part !== false && part !== "");
  return present.length ? h("section", {}, h("h3", {}, title), ...present) : null;
}

export function fields(rows: [name: string, value: Content][]): HTMLElement | null {
  const present = rows.filter(([, value]) => value !== null && value !== undefined && value !== false && value !== "");
  if (!present.length) return null;
  const limited = (value: Content): Node | string => (typeof value === "string" ? value.slice(0, MAX_TEXT) : (value as Node));
  return h("dl", {}, ...present.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, limited(value))]));
}

export function list(items: Content[]): HTMLElement | null {
  return items.length ? h("ul", {}, ...items.map((item) => h("li", {}, item))) : null;
}

/** A list that shows its first entries, and the others when asked. */
export function longList(items: Content[]): HTMLElement | null {
  const first = list(items.slice(0, MAX_LINKS));
  if (!first || items.length <= MAX_LINKS) return first;
  const more = h("button", { type: "button", class: "more", click: () => {
    first.append(...items.slice(MAX_LINKS).map((item) => h("li", {}, item)));
    more.remove();
  } }, `${items.length - MAX_LINKS} more`);
  return h("div", {}, first, more);
}

export function link(app: App, selection: Selection, text: string): HTMLElement {
  return h("button", { type: "button", class: "link", title: text.length > 40 ? text.slice(0, 400) : null, click: () => app.reveal(selection) }, text.slice(0, MAX_TEXT) || "(root)");
}

export function callLink(app: App, call: number): HTMLElement {
  return link(app, { type: "call", call }, app.model.call(call).id || app.model.localName(call));
}

export function nodeLink(app: App, node: number): HTMLElement {
  const { data } = app.model;
  const op = app.model.text(data.nodes.op[node]);
  return h("span", { class: "node-link" }, h("span", { class: "op" }, op), " ", link(app, { type: "node", node }, data.nodes.id[node]));
}

export function tensorLink(app: App, tensor: number): HTMLElement {
  return link(app, { type: "tensor", tensor }, app.model.data.tensors.name[tensor]);
}

/** A tensor with its shape and type, and for a weight what it contains. */
export function tensorRow(app: App, name: string, tensor: number): HTMLElement {
  const { model } = app;
  if (tensor < 0) return h("div", { class: "port" }, h("span", { class: "port-name" }, name), h("span", { class: "muted" }, "omitted"));
  const { source, producer } = model.data.tensors;
  const from = source[tensor] === SOURCE_INPUT ? "graph input" : source[tensor] === SOURCE_WEIGHT ? "initializer" : "";
  const weight = model.data.weights[tensor];
  return h(
    "div",
    { class: "port" },
    h("span", { class: "port-name" }, name),
    tensorLink(app, tensor),
    h("span", { class: "shape" }, model.describeTensor(tensor) || "shape unknown"),
    from && h("span", { class: "muted" }, from),
    producer[tensor] >= 0 && h("span", { class: "muted" }, "from ", nodeLink(app, producer[tensor])),
    weight && weightText(weight),
  );
}

/** An argument or a result of a call. */
export function portRow(app: App, port: Port): HTMLElement {
  if (port.tensor >= 0) return tensorRow(app, port.name, port.tensor);
  const type = [shapeText(port.shape), port.dtype].filter(Boolean).join(" ");
  return h(
    "div",
    { class: "port" },
    h("span", { class: "port-name" }, port.name),
    type && h("span", { class: "shape" }, type),
    port.standIn >= 0
      ? h("span", { class: "muted" }, "not in the graph; its consumers consume ", tensorLink(app, port.standIn))
      : h("span", { class: "muted" }, "not in the graph"),
  );
}

export function weightText(weight: Weight): HTMLElement {
  const facts = [`${grouped(weight.elements)} ${weight.elements === 1 ? "element" : "elements"}`, bytes(weight.bytes)];
  if (weight.external) facts.push("external data");
  const numbers: string[] = [];
  if (weight.min !== undefined && weight.max !== undefined) numbers.push(`${digits(weight.min)} … ${digits(weight.max)}`);
  if (weight.mean !== undefined) numbers.push(`mean ${digits(weight.mean)}`);
  if (weight.std !== undefined) numbers.push(`std ${digits(weight.std)}`);
  if (weight.zeros) numbers.push(`${digits(weight.zeros * 100)} % zero`);
  if (weight.nonfinite) numbers.push(`${grouped(weight.nonfinite)} not finite`);
  if (weight.sampled) numbers.push("of a sample");
  return h(
    "div",
    { class: "weight" },
    h("div", {}, facts.join(" · ")),
    numbers.length > 0 && h("div", {}, numbers.join(" · ")),
    weight.text && h("code", {}, weight.text.slice(0, MAX_TEXT)),
  );
}

/** A share of a whole as bars: operators, kinds. */
export function bars(rows: [name: string, count: number][]): HTMLElement | null {
  if (!rows.length) return null;
  const largest = Math.max(...rows.map(([, count]) => count));
  const elements = rows.slice(0, 10).map(([name, count]) => {
    const row = h("div", { class: "bar-row" }, h("span", { class: "bar-name" }, name.slice(0, 200)), h("span", { class: "bar-count" }, grouped(count)), h("span", { class: "bar" }));
    row.style.setProperty("--share", String(count / largest));
    return row;
  });
  const rest = rows.slice(10);
  const others = rest.reduce((sum, [, count]) => sum + count, 0);
  return h("div", { class: "bars" }, ...elements, rest.length > 0 && h("div", { class: "muted" }, `${rest.length} other operators, ${grouped(others)} nodes`));
}
