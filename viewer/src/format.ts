// Numbers and names as text.

import type { Unit } from "./data.ts";

const NUMBER = new Intl.NumberFormat("en-US");

export function grouped(value: number): string {
  return NUMBER.format(value);
}

/** A number in a few characters: 812, 3.1 k, 24 M. */
export function compact(value: number): string {
  return scaled(value, 1000, ["", " k", " M", " G", " T", " P"]);
}

export function bytes(value: number): string {
  return scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);
}

function scaled(value: number, base: number, units: string[]): string {
  let rest = Math.abs(value);
  let unit = 0;
  while (rest >= base * 0.9995 && unit < units.length - 1) {
    rest /= base;
    unit++;
  }
  const sign = value < 0 ? "−" : "";
  return sign + (unit === 0 && Number.isInteger(rest) ? String(rest) : digits(rest)) + units[unit];
}

/** Three significant digits. */
export function digits(value: number): string {
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "−∞" : "NaN";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1).replace("-", "−").replace("e+", "e").replace("e-", "e−");
  const text = size >= 100 ? value.toFixed(0) : value.toPrecision(3);
  return (text.includes(".") ? text.replace(/\.?0+$/, "") : text).replace("-", "−");
}

export function seconds(value: number): string {
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-6) return `${digits(value * 1e9)} ns`;
  if (size < 1e-3) return `${digits(value * 1e6)} µs`;
  if (size < 1) return `${digits(value * 1e3)} ms`;
  return `${digits(value)} s`;
}

export function measured(value: number, unit: Unit): string {
  switch (unit) {
    case "seconds":
      return seconds(value);
    case "bytes":
      return bytes(value);
    case "count":
      return compact(value);
    case "share":
      return `${digits(value * 100)} %`;
    case "decibel":
      return `${digits(value)} dB`;
    case "ratio":
      return `${digits(value)}×`;
    default:
      return digits(value);
  }
}

export function plural(count: number, noun: string): string {
  return `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`;
}

// As in modelexport/display.py: control characters, characters that reorder or break the text around them, invisible ones.
const UNSAFE =
  /[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\u{e0000}-\u{e007f}]/gu;

/** The text with every character replaced that could disguise it. */
export function printable(text: string): string {
  return text.replace(UNSAFE, "\ufffd");
}

/** A long text with its middle left out. */
export function shortened(text: string, limit: number): string {
  const all = Array.from(text.length > 4 * limit ? text.slice(0, 2 * limit) + text.slice(-2 * limit) : text);
  if (all.length <= limit) return text;
  const head = Math.ceil((limit - 1) * 0.6);
  return all.slice(0, head).join("") + "…" + all.slice(all.length - (limit - 1 - head)).join("");
}

/** A shape in a few characters: "batch x 128 x 768" as batch×128×768. */
export function shapeText(shape: string): string {
  return shape.replaceAll(" x ", "×");
}
