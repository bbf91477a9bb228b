// Light or dark: as the system has it, or as chosen. The choice is kept by the browser where it can be.

import type { Theme } from "./colors.ts";

const KEY = "modelexport-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export function currentTheme(): Theme {
  const chosen = stored();
  if (chosen === "light" || chosen === "dark") return chosen;
  return system.matches ? "dark" : "light";
}

export function applyTheme(): Theme {
  const theme = currentTheme();
  document.documentElement.dataset["theme"] = theme;
  return theme;
}

export function toggleTheme(): void {
  const next = currentTheme() === "dark" ? "light" : "dark";
  chosen = next;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // Not kept: the page has no storage of its own here.
  }
}

export function onSystemTheme(changed: () => void): void {
  system.addEventListener("change", changed);
}

let chosen = "";

function stored(): string {
  if (chosen) return chosen;
  try {
    return localStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}
