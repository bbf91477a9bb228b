// Globs on dotted paths, tags and names, matched in time linear in the length of the name: an automaton whose states
// are built when they are reached. The same as modelexport/analysis/query/glob.py.

import { characters } from "./python_text.ts";

export interface Piece {
  text: string;
  literal: boolean;
}

const WILD = /[*?[]/;
const MAX_CACHED = 10_000;

interface Token {
  ranges: [number, number][];
  negated: boolean;
  repeated: boolean; // accepts any number of characters, including none
  skips: number; // how many steps, this one included, can be skipped together
}

function token(ranges: [number, number][], negated = false, repeated = false, skips = 0): Token {
  return { ranges, negated, repeated, skips };
}

const code = (character: string): number => character.codePointAt(0)!;
const exactly = (character: string): Token => token([[code(character), code(character)]]);
const ANY = token([], true);
const ANY_REPEATED = token([], true, true);
// Accepts no character. It precedes any number of segments and their separator, and allows to skip both.
const NO_SEGMENTS = token([], false, true, 3);

interface State {
  positions: Set<number>;
  next: Map<string, State | null>;
}

export class Pattern {
  readonly text: string;
  readonly isLiteral: boolean;
  private readonly tokens: Token[];
  private states = new Map<string, State>();
  private cached = 0;

  constructor(pieces: Piece[], separator: string) {
    this.text = pieces.map((piece) => piece.text).join("");
    this.isLiteral = pieces.every((piece) => piece.literal || !WILD.test(piece.text));
    this.tokens = this.isLiteral ? [] : tokens(pieces, separator);
  }

  /** Whether the pattern matches the whole name. */
  matches(name: string): boolean {
    if (this.isLiteral) return name === this.text;
    let state: State | null = this.closed(new Set([0]));
    for (const character of name) {
      let following: State | null | undefined = state.next.get(character);
      if (following === undefined) {
        following = this.step(state, character);
        state.next.set(character, following);
        if (++this.cached > MAX_CACHED) {
          this.cached = 0;
          this.states.clear();
        }
      }
      if (following === null) return false;
      state = following;
    }
    return state.positions.has(this.tokens.length);
  }

  private step(state: State, character: string): State | null {
    const reached = new Set<number>();
    const value = code(character);
    for (const position of state.positions) {
      const step = this.tokens[position];
      if (step && accepts(step, value)) reached.add(step.repeated ? position : position + 1);
    }
    return reached.size ? this.closed(reached) : null;
  }

  /** The positions, and all that are reachable from them without a character. */
  private closed(positions: Set<number>): State {
    const waiting = [...positions];
    while (waiting.length) {
      const position = waiting.pop()!;
      const step = this.tokens[position];
      if (!step) continue;
      for (const forward of [step.repeated ? 1 : 0, step.skips]) {
        const further = position + forward;
        if (!positions.has(further)) {
          positions.add(further);
          waiting.push(further);
        }
      }
    }
    const key = [...positions].sort((a, b) => a - b).join(",");
    let state = this.states.get(key);
    if (!state) this.states.set(key, (state = { positions, next: new Map() }));
    return state;
  }
}

function accepts(step: Token, value: number): boolean {
  return step.ranges.some(([first, last]) => first <= value && value <= last) !== step.negated;
}

function tokens(pieces: Piece[], separator: string): Token[] {
  const within = separator ? { ...exactly(separator), negated: true } : ANY;
  const out: Token[] = [];
  let before = "";
  pieces.forEach((piece, index) => {
    const text = characters(piece.text);
    if (piece.literal) {
      for (const character of text) out.push(exactly(character));
      before = text.at(-1) ?? before;
      return;
    }
    let position = 0;
    while (position < text.length) {
      const character = text[position];
      const closing = character === "[" ? text.indexOf("]", position + 2) : -1;
      if (character === "*" && text[position + 1] === "*") {
        let end = position + 2;
        while (text[end] === "*") end++;
        if (separator && (before === "" || before === separator) && text[end] === separator) {
          // Any number of whole segments, including none.
          out.push(NO_SEGMENTS, ANY_REPEATED, exactly(separator));
          position = end + 1;
          before = separator;
          continue;
        }
        // At the end: at least one character.
        if (separator && before === separator && end === text.length && index === pieces.length - 1) out.push(ANY);
        out.push(ANY_REPEATED);
        position = end;
      } else if (character === "*") {
        out.push({ ...within, repeated: true });
        position++;
      } else if (character === "?") {
        out.push(within);
        position++;
      } else if (closing > 0) {
        out.push(oneOf(text.slice(position + 1, closing)));
        position = closing + 1;
      } else {
        out.push(exactly(character));
        position++;
      }
      before = character;
    }
  });
  return out;
}

function oneOf(inside: string[]): Token {
  const negated = inside[0] === "!" && inside.length > 1;
  const listed = negated ? inside.slice(1) : inside;
  const ranges: [number, number][] = [];
  let position = 0;
  while (position < listed.length) {
    const isRange = listed[position + 1] === "-" && position + 2 < listed.length;
    const last = isRange ? position + 2 : position;
    ranges.push([code(listed[position]), code(listed[last])]);
    position = last + 1;
  }
  return token(ranges, negated);
}
