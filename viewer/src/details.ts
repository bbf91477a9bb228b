// The detail panel: everything known of the selected call, module, node, tensor, stack or group; or of the file.

import type { App } from "./app.ts";
import { captionOf } from "./captions.ts";
import { KINDS, SOURCE_INPUT, SOURCE_WEIGHT, type Module } from "./data.ts";
import { bars, callLink, fields, link, list, longList, nodeLink, portRow, section, tensorRow, weightText, type Content } from "./details_parts.ts";
import { h, replaceChildren } from "./dom.ts";
import { bytes, digits, grouped, plural, shapeText } from "./format.ts";
import { stackedCalls } from "./items.ts";
import type { State } from "./state.ts";

export class Details {
  readonly element = h("div", { class: "details", tabindex: -1 });

  constructor(private readonly app: App) {}

  update(state: State, before: State | null): void {
    if (before && state.selection === before.selection && state.overlay === before.overlay) return;
    replaceChildren(this.element, ...this.content());
    if (!before || state.selection !== before.selection) this.element.scrollTop = 0;
  }

  private content(): Content[] {
    const { selection } = this.app.state;
    switch (selection?.type) {
      case "call":
        return this.ofCall(selection.call);
      case "module":
        return this.ofModule(selection.module);
      case "node":
        return this.ofNode(selection.node);
      case "tensor":
        return this.ofTensor(selection.tensor);
      case "item":
        return this.ofItem(selection.key);
      default:
        return this.ofFile();
    }
  }

  private heading(kind: string, title: string, subtitle: string): HTMLElement {
    return h(
      "header",
      {},
      h("div", { class: "kind" }, kind),
      h("h2", {}, title.slice(0, 1_000) || "(root)"),
      subtitle && h("div", { class: "subtitle" }, subtitle.slice(0, 1_000)),
    );
  }

  private ofFile(): Content[] {
    const { data } = this.app.model;
    const { about } = data;
    const opsets = Object.entries(about.opsets).map(([domain, version]) => `${domain || "ai.onnx"} ${version}`);
    const inputs = data.graphs[0].inputs.filter((tensor) => data.tensors.source[tensor] === SOURCE_INPUT);
    return [
      this.heading("File", data.file, plural(data.nodes.id.length, "node")),
      section("Notes", list(data.notes)),
      section(
        "About",
        fields([
          ["modules", grouped(data.modules.length)],
          ["calls", grouped(data.calls.length)],
          ["parameters", grouped(data.modules[0]?.totalParameters ?? 0)],
          ["size", bytes(about.bytes)],
          ["strategy", about.strategy],
          ["exporter", about.exporter],
          ["hierarchy", about.origin],
          ["coverage", `${digits(about.coverage * 100)} % of the nodes have an owner`],
          ["producer", about.producer],
          ["opsets", opsets.join(", ")],
          ["IR version", String(about.ir_version)],
          ["check", about.check],
          ["graph hash", data.graph_hash],
        ]),
      ),
      section("Inputs", ...inputs.map((tensor) => tensorRow(this.app, "", tensor))),
      section("Outputs", ...data.graphs[0].outputs.filter((tensor) => tensor >= 0).map((tensor) => tensorRow(this.app, "", tensor))),
      section("Operators", bars(data.modules[0]?.operations ?? [])),
    ];
  }

  private ofCall(call: number): Content[] {
    const { app } = this;
    const { model } = app;
    const info = model.call(call);
    const module = model.moduleOf(call);
    const others = model.callsOfModule(info.module).filter((other) => other !== call);
    const inner = model.childCalls(call);
    return [
      this.heading("Module call", info.id || model.localName(call), module.class),
      this.overlayValues(call),
      section("Structure", this.structure(call)),
      info.nodes === 0 && h("p", { class: "remark" }, "The graph has no node of this call: the exporter removed, folded or merged what it computed."),
      section("Inputs", ...info.inputs.map((port) => portRow(app, port))),
      section("Outputs", ...info.outputs.map((port) => portRow(app, port))),
      section(
        "Module",
        fields([
          ["path", module.path || "(root)"],
          ["class", module.qualifiedClass],
          ["tag", info.tag],
          ["called by", info.parent >= 0 ? callLink(app, info.parent) : null],
          ["aliases", module.aliases.join(", ")],
          ["arguments", module.arguments.join(", ")],
        ]),
      ),
      section("Counts", this.counts(module, info.ownNodes, info.nodes)),
      this.parameters(module),
      section("Operators", bars(module.operations)),
      section("Kinds of attribution", bars(module.kinds)),
      section("Other calls of this module", longList(others.map((other) => callLink(app, other)))),
      section("Calls inside", longList(inner.map((child) => callLink(app, child)))),
      section("Own nodes", longList(model.ownNodes(call).map((node) => nodeLink(app, node)))),
    ];
  }

  private structure(call: number): HTMLElement | null {
    const { app } = this;
    const differences = app.levels.differences(call);
    if (differences.length) {
      return h("div", { class: "differs" }, h("div", {}, "Differs from its siblings of the same class:"), list(differences));
    }
    const repeat = app.model.data.repeats.find((candidate) => candidate.calls.includes(call));
    if (!repeat) return null;
    const rest = repeat.calls.filter((other) => other !== call);
    return h(
      "div",
      {},
      `Equal to ${plural(rest.length, "other call")} of ${repeat.label}`,
      repeat.odd.length > 0 && h("div", {}, "Odd ones out: ", ...repeat.odd.flatMap((odd) => [callLink(app, odd.call), " "])),
    );
  }

  private counts(module: Module, ownNodes: number, nodes: number): HTMLElement | null {
    return fields([
      ["own nodes", grouped(ownNodes)],
      ["nodes", grouped(nodes)],
      ["parameters", grouped(module.totalParameters)],
      ["own parameters", grouped(module.ownParameters)],
      ["bytes", bytes(module.parameterBytes)],
      ["calls", module.calls === 1 ? "" : grouped(module.calls)],
      ["lowest confidence", module.lowestConfidence === null ? "" : module.lowestConfidence.toFixed(2)],
    ]);
  }

  private parameters(module: Module): HTMLElement | null {
    const rows = module.parameters.map(([name, dtype, shape]) =>
      h("span", {}, h("span", { class: "port-name" }, name), " ", h("span", { class: "shape" }, `${shapeText(shape)} ${dtype}`)),
    );
    return section("Own parameters", longList(rows));
  }

  private ofModule(index: number): Content[] {
    const { app } = this;
    const module = app.model.data.modules[index];
    const calls = app.model.callsOfModule(index);
    return [
      this.heading("Module", module.path, module.class),
      calls.length === 0 && h("p", { class: "remark" }, "This module is never called itself."),
      section(
        "Module",
        fields([
          ["class", module.qualifiedClass],
          ["tag", module.tag],
          ["aliases", module.aliases.join(", ")],
          ["arguments", module.arguments.join(", ")],
        ]),
      ),
      section("Counts", this.counts(module, module.ownNodes, module.nodes)),
      this.parameters(module),
      section("Operators", bars(module.operations)),
      section("Calls", longList(calls.map((call) => callLink(app, call)))),
    ];
  }

  private ofNode(node: number): Content[] {
    const { app } = this;
    const { model } = app;
    const { nodes, graphs } = model.data;
    const calls = (table: Record<string, number[]>): HTMLElement | null => longList((table[node] ?? []).map((call) => callLink(app, call)));
    const attributes: [string, string][] = [];
    for (let i = 0; i + 1 < nodes.attributes[node].length; i += 2) {
      attributes.push([model.text(nodes.attributes[node][i]), model.text(nodes.attributes[node][i + 1])]);
    }
    const graph = nodes.graph[node];
    const consumers = nodes.outputs[node].flatMap((tensor) => (tensor >= 0 ? model.consumers(tensor) : []));
    return [
      this.heading("Node", model.text(nodes.op[node]), nodes.id[node]),
      this.overlayNodeValue(node),
      section(
        "Attribution",
        fields([
          ["owner", callLink(app, nodes.call[node])],
          ["kind", KINDS[nodes.kind[node]]],
          ["confidence", nodes.confidence[node].toFixed(2)],
          ["reason", model.text(nodes.reason[node])],
          ["contributors", calls(nodes.contributors)],
          ["context", calls(nodes.context)],
          ["source", model.text(nodes.source[node])],
        ]),
      ),
      section("Inputs", ...nodes.inputs[node].map((tensor, i) => tensorRow(app, String(i), tensor))),
      section("Outputs", ...nodes.outputs[node].map((tensor, i) => tensorRow(app, String(i), tensor))),
      section("Consumers", longList([...new Set(consumers)].map((consumer) => nodeLink(app, consumer)))),
      section("Attributes", fields(attributes)),
      section("Subgraphs", list(model.graphsOf(node).map((inner) => link(app, { type: "item", key: `s:${inner}` }, graphs[inner].attribute || graphs[inner].function || graphs[inner].name)))),
      section(
        "Operator",
        fields([
          ["domain", model.text(nodes.domain[node]) || "ai.onnx"],
          ["node name", model.text(nodes.name[node])],
          ["graph", graph === 0 ? "" : graphs[graph].function || graphs[graph].name],
        ]),
      ),
    ];
  }

  private ofTensor(tensor: number): Content[] {
    const { app } = this;
    const { model } = app;
    const { tensors, weights } = model.data;
    const producer = tensors.producer[tensor];
    const source = ["output of a node", "graph input", "initializer"][tensors.source[tensor]];
    const weight = weights[tensor];
    const parameter = tensors.parameter[tensor];
    return [
      this.heading("Tensor", tensors.name[tensor], model.describeTensor(tensor) || "shape and type unknown"),
      section(
        "Source",
        fields([
          ["source", source],
          ["parameter", parameter === undefined ? "" : model.text(parameter)],
          ["producer", producer >= 0 ? nodeLink(app, producer) : null],
          ["owner", producer >= 0 ? callLink(app, model.data.nodes.call[producer]) : null],
        ]),
      ),
      tensors.source[tensor] === SOURCE_WEIGHT && weight && section("Content", weightText(weight)),
      section("Consumers", longList(model.consumers(tensor).map((node) => nodeLink(app, node)))),
    ];
  }

  private ofItem(key: string): Content[] {
    const { app } = this;
    const item = app.levels.itemByKey(key);
    if (!item) return this.ofFile();
    const { title, subtitle } = captionOf(app.model, item);
    if (item.kind === "stack") {
      const calls = stackedCalls(item);
      const repeat = app.model.data.repeats.find((candidate) => candidate.calls.includes(calls[0]));
      return [
        this.heading("Repeated calls", title, subtitle),
        h("p", { class: "remark" }, `${plural(calls.length, "call")} with equal structure, ${plural(item.nodes.length, "node")}.`),
        section("Calls", longList(calls.map((call) => callLink(app, call)))),
        section("Odd ones out", ...(repeat?.odd ?? []).map((odd) => h("div", { class: "differs" }, callLink(app, odd.call), list([...odd.differences])))),
      ];
    }
    const members = item.members.map((member) => (member.kind === "node" ? nodeLink(app, member.node) : member.kind === "call" ? callLink(app, member.call) : captionOf(app.model, member).title));
    const nodes = item.kind === "graph" ? item.nodes.map((node) => nodeLink(app, node)) : [];
    return [
      this.heading(item.kind === "graph" ? "Graph" : "Group", title, subtitle),
      section("Contains", longList([...members, ...nodes])),
    ];
  }

  /** The values of all overlays for a call, the chosen one first. */
  private overlayValues(call: number): HTMLElement | null {
    const { app } = this;
    const active = app.state.overlay;
    const rows = app.overlays
      .filter(({ id }) => id !== "class")
      .sort((a, b) => Number(b.id === active) - Number(a.id === active))
      .map((overlay) => {
        const total = overlay.totals?.[call] ?? null;
        const own = overlay.calls[call] ?? null;
        const format = app.overlay(overlay.id)!;
        const texts = [total !== null ? format.text(total) : "", own !== null && own !== total ? `${format.text(own)}${total !== null ? " own" : ""}` : ""];
        const lines = overlay.details?.[call] ?? [];
        const value = texts.filter(Boolean).join(", ");
        return value || lines.length ? valueBlock(overlay.title, value, lines, overlay.id === active) : null;
      });
    return section("Values", ...rows);
  }

  private overlayNodeValue(node: number): HTMLElement | null {
    const { app } = this;
    const rows = app.overlays.map((overlay) => {
      const value = overlay.nodes?.[node] ?? null;
      return value === null ? null : valueBlock(overlay.title, app.overlay(overlay.id)!.text(value), [], overlay.id === app.state.overlay);
    });
    return section("Values", ...rows);
  }
}

/** A value of an overlay, with what the overlay says of it. */
function valueBlock(title: string, value: string, lines: string[], active: boolean): HTMLElement {
  const row = h("div", { class: "value-row" }, h("span", { class: "value-name" }, title), h("span", {}, value));
  return h("div", { class: active ? "value-block active" : "value-block" }, row, ...lines.map((line) => h("div", { class: "muted" }, line)));
}
