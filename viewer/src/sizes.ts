// What the map, the tree's bars and the boxes count: nodes, parameters, bytes, or an overlay that adds up.

import type { Unit } from "./data.ts";
import { measured } from "./format.ts";
import type { Model } from "./model.ts";

export interface Size {
  id: string;
  title: string;
  unit: Unit;
  own(call: number): number; // without the calls inside
}

export function sizesOf(model: Model): Size[] {
  const owners = parameterOwners(model);
  const sizes: Size[] = [
    { id: "nodes", title: "Nodes", unit: "count", own: (call) => model.call(call).ownNodes },
    { id: "parameters", title: "Parameters", unit: "count", own: (call) => owners.elements[call] },
    { id: "bytes", title: "Bytes", unit: "bytes", own: (call) => owners.bytes[call] },
  ];
  for (const overlay of model.data.overlays) {
    if (overlay.sizes) {
      sizes.push({ id: overlay.id, title: overlay.title, unit: overlay.unit, own: (call) => Math.max(overlay.calls[call] ?? 0, 0) });
    }
  }
  return sizes;
}

export function sizeText(size: Size, value: number): string {
  return measured(value, size.unit);
}

/** The size of each call with the calls inside it. */
export function totalsOf(model: Model, size: Size): number[] {
  const totals = model.data.calls.map((_, call) => size.own(call));
  for (let call = totals.length - 1; call > 0; call--) {
    const parent = model.call(call).parent;
    if (parent >= 0) totals[parent] += totals[call];
  }
  return totals;
}

/** Parameters count once: for the first call of their module, or of the nearest called module around it. */
function parameterOwners(model: Model): { elements: number[]; bytes: number[] } {
  const { calls, modules } = model.data;
  const elements = calls.map(() => 0);
  const bytes = calls.map(() => 0);
  modules.forEach((module, i) => {
    let called = i;
    while (called > 0 && !model.callsOfModule(called).length) called = modules[called].parent;
    const call = model.callsOfModule(Math.max(called, 0))[0] ?? 0;
    elements[call] += module.ownParameters;
    const inner = model.childModules(i).reduce((sum, child) => sum + modules[child].parameterBytes, 0);
    bytes[call] += Math.max(module.parameterBytes - inner, 0);
  });
  return { elements, bytes };
}
