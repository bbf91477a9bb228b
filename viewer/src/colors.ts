// Colour scales that are readable with colour-blindness: light to dark for amounts, blue to orange for differences,
// Okabe and Ito's colours for categories.

export type Theme = "light" | "dark";

type Rgb = [number, number, number];

const AMOUNT_LIGHT = ["#f3f6df", "#d3ecb8", "#8fd3ba", "#48b4c2", "#2583b4", "#24519b", "#12256b"];
const AMOUNT_DARK = ["#2a2350", "#38407a", "#31688e", "#21918c", "#35b779", "#90d743", "#fde725"];
const DIFFERENCE_LIGHT = ["#1b5a9c", "#5b9bcf", "#b5d3ea", "#f4f4f2", "#f7cf9f", "#e08f3c", "#a65205"];
const DIFFERENCE_DARK = ["#7cc0ff", "#4688c6", "#2b527b", "#33383f", "#79501f", "#c07a2a", "#ffb45c"];
// The first is quiet: it is the usual case (exact, unchanged), or everything else.
const CATEGORIES = ["#9aa3af", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
// Large areas are softer than the colours themselves, so that text on them is easy to read.
const SOFTNESS = 0.4;
const PAPER: Record<Theme, string> = { light: "#ffffff", dark: "#181c22" };
export const CATEGORY_COUNT = CATEGORIES.length;

export function amountColor(fraction: number, theme: Theme): string {
  return interpolated(theme === "dark" ? AMOUNT_DARK : AMOUNT_LIGHT, fraction);
}

/** For a fraction between 0 and 1; 0.5 is no difference. */
export function differenceColor(fraction: number, theme: Theme): string {
  return interpolated(theme === "dark" ? DIFFERENCE_DARK : DIFFERENCE_LIGHT, fraction);
}

export function categoryColor(index: number, theme: Theme): string {
  return interpolated([CATEGORIES[index < CATEGORIES.length ? index : 0], PAPER[theme]], SOFTNESS);
}

/** Black or white, whichever is easier to read on the colour. */
export function textOn(color: string): string {
  return luminance(parsed(color)) > 0.3 ? "#14181d" : "#ffffff";
}

function interpolated(stops: string[], fraction: number): string {
  const position = Math.min(Math.max(fraction, 0), 1) * (stops.length - 1);
  const index = Math.min(Math.floor(position), stops.length - 2);
  const from = parsed(stops[index]);
  const to = parsed(stops[index + 1]);
  const mixed = from.map((value, i) => Math.round(value + (to[i] - value) * (position - index)));
  return "#" + mixed.map((value) => value.toString(16).padStart(2, "0")).join("");
}

function parsed(color: string): Rgb {
  return [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16)) as Rgb;
}

function luminance(rgb: Rgb): number {
  const [r, g, b] = rgb.map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
