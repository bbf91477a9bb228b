// The data of one model, as the Python package writes it (modelexport.viewing, page_data.py).

export type TextIndex = number; // a position in PageData.strings

/** What the page works with: rows of modules and calls, and names as text. */
export interface PageData extends Omit<WireData, "modules" | "calls" | "nodes" | "tensors"> {
  modules: Module[];
  calls: Call[];
  nodes: Nodes;
  tensors: Tensors;
}

/** What the page contains: tables by column; `-1` is none. */
interface WireData {
  format: 1;
  file: string;
  graph_hash: string;
  about: About;
  notes: string[];
  strings: string[];
  modules: WireModules;
  calls: WireCalls;
  graphs: Graph[];
  nodes: WireNodes;
  tensors: WireTensors;
  weights: Record<string, Weight>;
  repeats: Repeat[];
  overlays: Overlay[];
}

interface WireModules {
  path: TextIndex[];
  class: TextIndex[];
  qualified_class: TextIndex[];
  tag: TextIndex[];
  visible: number[];
  parent: number[];
  parameters: TextIndex[][]; // name, type, shape, name, type, shape
  calls: number[];
  own_nodes: number[];
  nodes: number[];
  own_parameters: number[];
  parameters_total: number[];
  parameter_bytes: number[];
  operations: number[][]; // operator, number, operator, number
  kinds: number[][]; // kind, number, kind, number
  lowest_confidence: (number | null)[];
  aliases: Record<string, TextIndex[]>;
  arguments: Record<string, TextIndex[]>;
}

interface WireCalls {
  id: TextIndex[];
  module: number[];
  parent: number[];
  tag: TextIndex[];
  inputs: number[][][]; // name, tensor; or name, tensor, stand-in, type, shape
  outputs: number[][][];
  own_nodes: number[];
  nodes: number[];
}

export interface About {
  strategy: string;
  exporter: string;
  origin: string;
  producer: string;
  opsets: Record<string, number>;
  ir_version: number;
  coverage: number;
  bytes: number;
  check: string;
  private: boolean;
}

export interface Module {
  path: string;
  class: string;
  qualifiedClass: string;
  tag: string;
  visible: boolean;
  parent: number;
  aliases: string[];
  arguments: string[];
  parameters: [name: string, dtype: string, shape: string][];
  calls: number;
  ownNodes: number;
  nodes: number;
  ownParameters: number;
  totalParameters: number;
  parameterBytes: number;
  operations: [operator: string, count: number][];
  kinds: [kind: string, count: number][];
  lowestConfidence: number | null;
}

export interface Port {
  name: string;
  tensor: number; // -1: the graph does not have it
  standIn: number; // the tensor that all consumers consume in its place; -1 if there is none
  dtype: string; // of a tensor that the graph does not have
  shape: string;
}

export interface Call {
  id: string;
  module: number;
  parent: number;
  tag: string;
  inputs: Port[];
  outputs: Port[];
  ownNodes: number;
  nodes: number; // with the calls inside
}

export interface Graph {
  name: string;
  owner: number;
  attribute?: string;
  function?: string;
  inputs: number[];
  outputs: number[];
}

interface WireNodes {
  id: TextIndex[];
  name: TextIndex[];
  op: TextIndex[];
  domain: TextIndex[];
  graph: number[];
  call: number[];
  kind: number[];
  confidence: number[];
  reason: TextIndex[];
  inputs: number[][];
  outputs: number[][];
  attributes: TextIndex[][];
  source: TextIndex[];
  contributors: Record<string, number[]>;
  context: Record<string, number[]>;
  function: Record<string, number>;
}

interface WireTensors {
  name: TextIndex[];
  dtype: TextIndex[];
  shape: TextIndex[];
  producer: number[];
  source: number[];
  parameter: Record<string, TextIndex>;
}

export interface Nodes extends Omit<WireNodes, "id"> {
  id: string[];
}

export interface Tensors extends Omit<WireTensors, "name"> {
  name: string[];
}

export const SOURCE_INPUT = 1;
export const SOURCE_WEIGHT = 2;

export interface Weight {
  bytes: number;
  elements: number;
  external?: boolean;
  sampled?: boolean;
  min?: number;
  max?: number;
  mean?: number;
  std?: number;
  zeros?: number; // the fraction of elements
  nonfinite?: number;
  text?: string;
}

export interface Repeat {
  calls: number[];
  label: string;
  odd: { call: number; differences: string[] }[];
}

export type Unit = "seconds" | "bytes" | "count" | "ratio" | "decibel" | "share" | "";

export interface Overlay {
  id: string;
  title: string;
  description: string;
  scale: "sequential" | "diverging" | "category";
  unit: Unit;
  categories?: string[];
  calls: (number | null)[];
  totals?: (number | null)[];
  nodes?: (number | null)[];
  details?: Record<string, string[]>;
  notes?: string[];
  sizes?: boolean;
}

export const KINDS = ["exact", "fused", "merged", "folded", "inferred"];

export function readPageData(): PageData {
  const block = document.getElementById("model-data");
  const wire = JSON.parse(block?.textContent ?? "") as WireData;
  if (wire.format !== 1) throw new Error(`this page reads data of format 1, not ${String(wire.format)}`);
  return decoded(wire);
}

function decoded(wire: WireData): PageData {
  const text = (index: TextIndex): string => wire.strings[index] ?? "";
  return {
    ...wire,
    modules: wire.modules.path.map((_, i) => moduleRow(wire.modules, i, text)),
    calls: wire.calls.id.map((_, i) => callRow(wire.calls, i, text)),
    nodes: { ...wire.nodes, id: wire.nodes.id.map(text) },
    tensors: { ...wire.tensors, name: wire.tensors.name.map(text) },
  };
}

function moduleRow(table: WireModules, i: number, text: (index: TextIndex) => string): Module {
  return {
    path: text(table.path[i]),
    class: text(table.class[i]),
    qualifiedClass: text(table.qualified_class[i]),
    tag: text(table.tag[i]),
    visible: table.visible[i] !== 0,
    parent: table.parent[i],
    aliases: (table.aliases[i] ?? []).map(text),
    arguments: (table.arguments[i] ?? []).map(text),
    parameters: chunks(table.parameters[i], 3).map(([name, dtype, shape]) => [text(name), text(dtype), text(shape)]),
    calls: table.calls[i],
    ownNodes: table.own_nodes[i],
    nodes: table.nodes[i],
    ownParameters: table.own_parameters[i],
    totalParameters: table.parameters_total[i],
    parameterBytes: table.parameter_bytes[i],
    operations: chunks(table.operations[i], 2).map(([operator, count]) => [text(operator), count]),
    kinds: chunks(table.kinds[i], 2).map(([kind, count]) => [KINDS[kind], count]),
    lowestConfidence: table.lowest_confidence[i],
  };
}

function callRow(table: WireCalls, i: number, text: (index: TextIndex) => string): Call {
  const port = ([name, tensor, standIn, dtype, shape]: number[]): Port => ({
    name: text(name),
    tensor,
    standIn: standIn ?? -1,
    dtype: text(dtype ?? 0),
    shape: text(shape ?? 0),
  });
  return {
    id: text(table.id[i]),
    module: table.module[i],
    parent: table.parent[i],
    tag: text(table.tag[i]),
    inputs: table.inputs[i].map(port),
    outputs: table.outputs[i].map(port),
    ownNodes: table.own_nodes[i],
    nodes: table.nodes[i],
  };
}

function chunks(list: number[], size: number): number[][] {
  const out: number[][] = [];
  for (let i = 0; i < list.length; i += size) out.push(list.slice(i, i + size));
  return out;
}
