// The width of text in the fonts of the graph.

import { printable } from "./format.ts";

export const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, Inter, "Helvetica Neue", Arial, sans-serif';

export type TextStyle = "title" | "body" | "small";

const FONTS: Record<TextStyle, string> = {
  title: `600 13px ${FONT}`,
  body: `400 12px ${FONT}`,
  small: `400 11px ${FONT}`,
};

const widths = new Map<string, number>();
let context: CanvasRenderingContext2D | null = null;

export function textWidth(text: string, style: TextStyle): number {
  const key = `${style}|${text}`;
  let width = widths.get(key);
  if (width === undefined) {
    context ??= document.createElement("canvas").getContext("2d");
    if (context) context.font = FONTS[style];
    width = context ? context.measureText(printable(text)).width : text.length * 7;
    if (widths.size > 50_000) widths.clear();
    widths.set(key, width);
  }
  return width;
}

/** The text, shortened in the middle until it fits. */
export function fitted(text: string, style: TextStyle, limit: number): string {
  if (text.length < 400 && textWidth(text, style) <= limit) return text;
  const all = Array.from(text.length > 400 ? text.slice(0, 200) + text.slice(-200) : text);
  let low = 1;
  let high = all.length - 1;
  const cut = (count: number): string => {
    const head = Math.ceil(count * 0.6);
    return all.slice(0, head).join("") + "…" + (count - head ? all.slice(-(count - head)).join("") : "");
  };
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (textWidth(cut(middle), style) <= limit) low = middle;
    else high = middle - 1;
  }
  return cut(low);
}
