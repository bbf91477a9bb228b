// One tooltip for the whole page: a heading and lines of text beside the pointer.

import { byId, h, replaceChildren } from "./dom.ts";

export interface TooltipText {
  title: string;
  lines: string[];
}

const MAX_LINES = 12;

export function showTooltip(event: MouseEvent, text: TooltipText): void {
  const tooltip = byId("tooltip");
  const hidden = text.lines.length - MAX_LINES;
  const lines = hidden > 0 ? [...text.lines.slice(0, MAX_LINES - 1), `${hidden + 1} more`] : text.lines;
  replaceChildren(tooltip, h("strong", {}, text.title.slice(0, 300)), ...lines.map((line) => h("div", {}, line.slice(0, 300))));
  tooltip.hidden = false;
  const { offsetWidth, offsetHeight } = tooltip;
  const left = Math.min(event.clientX + 14, innerWidth - offsetWidth - 8);
  const below = event.clientY + 18;
  const top = below + offsetHeight > innerHeight - 8 ? event.clientY - offsetHeight - 12 : below;
  tooltip.style.left = `${Math.max(left, 8)}px`;
  tooltip.style.top = `${Math.max(top, 8)}px`;
}

export function hideTooltip(): void {
  byId("tooltip").hidden = true;
}
