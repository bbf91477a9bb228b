// Names similar to a misspelt one: difflib.get_close_matches of Python, so that suggestions are the same.

import { characters, compareText } from "./python_text.ts";

export function closeMatches(word: string, names: string[], count: number, cutoff: number): string[] {
  const target = characters(word);
  const positions = positionsOf(target);
  const scored: [score: number, name: string][] = [];
  for (const name of names) {
    const other = characters(name);
    if (upperBound(other.length, target.length) < cutoff || commonBound(other, target) < cutoff) continue;
    const score = ratio(other, target, positions);
    if (score >= cutoff) scored.push([score, name]);
  }
  scored.sort((a, b) => b[0] - a[0] || compareText(b[1], a[1]));
  return scored.slice(0, count).map(([, name]) => name);
}

function calculate(matches: number, length: number): number {
  return length ? (2 * matches) / length : 1;
}

function upperBound(left: number, right: number): number {
  return calculate(Math.min(left, right), left + right);
}

function commonBound(left: string[], right: string[]): number {
  const available = new Map<string, number>();
  for (const character of right) available.set(character, (available.get(character) ?? 0) + 1);
  let matches = 0;
  for (const character of left) {
    const rest = available.get(character) ?? 0;
    available.set(character, rest - 1);
    if (rest > 0) matches++;
  }
  return calculate(matches, left.length + right.length);
}

/** The positions of each character; in texts of 200 characters or more, frequent ones are left out. */
function positionsOf(text: string[]): Map<string, number[]> {
  const positions = new Map<string, number[]>();
  text.forEach((character, i) => {
    const list = positions.get(character);
    if (list) list.push(i);
    else positions.set(character, [i]);
  });
  if (text.length >= 200) {
    const limit = Math.floor(text.length / 100) + 1;
    for (const [character, list] of positions) if (list.length > limit) positions.delete(character);
  }
  return positions;
}

function ratio(a: string[], b: string[], positions: Map<string, number[]>): number {
  let matches = 0;
  const waiting: [number, number, number, number][] = [[0, a.length, 0, b.length]];
  while (waiting.length) {
    const [aLow, aHigh, bLow, bHigh] = waiting.pop()!;
    const [i, j, size] = longestMatch(a, b, positions, aLow, aHigh, bLow, bHigh);
    if (!size) continue;
    matches += size;
    if (aLow < i && bLow < j) waiting.push([aLow, i, bLow, j]);
    if (i + size < aHigh && j + size < bHigh) waiting.push([i + size, aHigh, j + size, bHigh]);
  }
  return calculate(matches, a.length + b.length);
}

function longestMatch(
  a: string[],
  b: string[],
  positions: Map<string, number[]>,
  aLow: number,
  aHigh: number,
  bLow: number,
  bHigh: number,
): [number, number, number] {
  let bestI = aLow;
  let bestJ = bLow;
  let best = 0;
  let lengths = new Map<number, number>();
  for (let i = aLow; i < aHigh; i++) {
    const updated = new Map<number, number>();
    for (const j of positions.get(a[i]) ?? []) {
      if (j < bLow) continue;
      if (j >= bHigh) break;
      const length = (lengths.get(j - 1) ?? 0) + 1;
      updated.set(j, length);
      if (length > best) [bestI, bestJ, best] = [i - length + 1, j - length + 1, length];
    }
    lengths = updated;
  }
  // Frequent characters that were left out extend the match.
  while (bestI > aLow && bestJ > bLow && a[bestI - 1] === b[bestJ - 1]) [bestI, bestJ, best] = [bestI - 1, bestJ - 1, best + 1];
  while (bestI + best < aHigh && bestJ + best < bHigh && a[bestI + best] === b[bestJ + best]) best++;
  return [bestI, bestJ, best];
}
