// Parse selectors: paths, calls, tags, classes, operators, combined with and/or/not. docs/selectors.md describes the
// syntax; the same as modelexport/analysis/query/selector_parser.py, error texts included.

import { KINDS } from "../data.ts";
import { Pattern, type Piece } from "./glob.ts";
import { characters, isSpace, repr } from "./python_text.ts";

const MAX_LENGTH = 65_536;
const MAX_DEPTH = 64;
const MAX_SHOWN = 200;

const SEPARATORS = new Map([
  ["path", "."],
  ["call", "."],
  ["tag", "/"],
  ["class", ""],
  ["op", ""],
  ["kind", ""],
  ["node", ""],
]);
export const NODE_FIELDS = new Set(["op", "kind", "node"]);
const NOT_A_TERM = new Set(["and", "or", "not", ")"]);

export class SelectorError extends Error {}

export interface Term {
  type: "term";
  field: string; // "name" stands for a path, an alias or a call
  pattern: Pattern;
}

export type Expression =
  | Term
  | { type: "and"; parts: Expression[] }
  | { type: "or"; parts: Expression[] }
  | { type: "not"; part: Expression };

interface Token {
  start: number;
  pieces: Piece[];
  text: string; // "" for a quoted token, which is neither a keyword nor a parenthesis
}

export function parseExpression(text: string): Expression {
  const length = characters(text).length;
  if (length > MAX_LENGTH) {
    throw new SelectorError(`a pattern of ${length} characters is too long: the limit is ${MAX_LENGTH}`);
  }
  return new Parser(text).parse();
}

export function termText(term: Term): string {
  return term.field === "name" ? term.pattern.text : `${term.field}:${term.pattern.text}`;
}

/** A selector for an error message, shortened. */
export function shown(text: string): string {
  const all = characters(text);
  return repr(all.length <= MAX_SHOWN ? text : all.slice(0, MAX_SHOWN).join("") + "…");
}

/** The terms of an expression, from left to right. */
export function termsOf(expression: Expression): Term[] {
  if (expression.type === "term") return [expression];
  if (expression.type === "not") return termsOf(expression.part);
  return expression.parts.flatMap(termsOf);
}

class Parser {
  private readonly tokens: Token[];
  private next = 0;

  constructor(private readonly text: string) {
    this.tokens = tokenize(text);
  }

  parse(): Expression {
    const expression = this.parseOr(0);
    if (this.next < this.tokens.length) {
      const closing = this.tokens[this.next].text === ")";
      throw this.error(closing ? "this ')' has no '('" : "expected 'and' or 'or' before this");
    }
    return expression;
  }

  private parseOr(depth: number): Expression {
    const parts = [this.parseAnd(depth)];
    while (this.accept("or")) parts.push(this.parseAnd(depth));
    return parts.length === 1 ? parts[0] : { type: "or", parts };
  }

  private parseAnd(depth: number): Expression {
    const parts = [this.parseNot(depth)];
    while (this.accept("and")) parts.push(this.parseNot(depth));
    return parts.length === 1 ? parts[0] : { type: "and", parts };
  }

  private parseNot(depth: number): Expression {
    if (depth > MAX_DEPTH) throw this.error(`nested deeper than ${MAX_DEPTH}`);
    if (this.accept("not")) {
      const inner = this.parseNot(depth + 1);
      return inner.type === "not" ? inner.part : { type: "not", part: inner };
    }
    if (this.accept("(")) {
      const opened = this.next - 1;
      const expression = this.parseOr(depth + 1);
      if (!this.accept(")")) {
        throw this.error("this '(' is not closed", this.next >= this.tokens.length ? opened : undefined);
      }
      return expression;
    }
    if (this.next >= this.tokens.length || NOT_A_TERM.has(this.tokens[this.next].text)) {
      throw this.error("expected a module path, a tag, class:, op: or '('");
    }
    this.next++;
    return this.parseTerm(this.next - 1);
  }

  private parseTerm(index: number): Term {
    let pieces = this.tokens[index].pieces;
    const head = pieces[0];
    let field = "name";
    if (head.literal || head.text.startsWith("/")) {
      field = head.text.startsWith("/") && !head.literal ? "tag" : "name";
    } else {
      const colon = head.text.indexOf(":");
      if (colon >= 0) {
        field = head.text.slice(0, colon);
        if (!SEPARATORS.has(field)) {
          const known = [...SEPARATORS.keys()].map((name) => `${name}:`).join(", ");
          throw this.error(`there is no ${repr(field + ":")} (there are ${known}); quote a name with a colon`, index);
        }
        pieces = [{ text: head.text.slice(colon + 1), literal: false }, ...pieces.slice(1)];
      }
    }
    const pattern = new Pattern(pieces, SEPARATORS.get(field) ?? ".");
    if (field === "kind" && pattern.isLiteral && !KINDS.includes(pattern.text)) {
      throw this.error(`there is no kind ${repr(pattern.text)} (there are ${KINDS.join(", ")})`, index);
    }
    if (field !== "name" && !pattern.text) throw this.error(`'${field}:' has no value`, index);
    return { type: "term", field, pattern };
  }

  private accept(word: string): boolean {
    if (this.next < this.tokens.length && this.tokens[this.next].text === word) {
      this.next++;
      return true;
    }
    return false;
  }

  private error(problem: string, at = this.next): SelectorError {
    if (at >= this.tokens.length) {
      return new SelectorError(`the pattern ${shown(this.text)} ends too early: ${problem}`);
    }
    const position = this.tokens[at].start + 1;
    return new SelectorError(`the pattern ${shown(this.text)} has an error at character ${position}: ${problem}`);
  }
}

/** Split text into parentheses and words; a word consists of quoted and unquoted pieces. */
function tokenize(source: string): Token[] {
  const text = characters(source);
  const out: Token[] = [];
  const ends = (character: string): boolean => isSpace(character) || character === "(" || character === ")";
  let position = 0;
  while (position < text.length) {
    if (isSpace(text[position])) {
      position++;
    } else if (text[position] === "(" || text[position] === ")") {
      out.push({ start: position, pieces: [{ text: text[position], literal: false }], text: text[position] });
      position++;
    } else {
      const start = position;
      const pieces: Piece[] = [];
      while (position < text.length && !ends(text[position])) {
        if (text[position] === "'" || text[position] === '"') {
          const [quoted, after] = readQuoted(source, text, position);
          pieces.push({ text: quoted, literal: true });
          position = after;
        } else {
          const begin = position;
          while (position < text.length && !ends(text[position]) && text[position] !== "'" && text[position] !== '"') {
            position++;
          }
          pieces.push({ text: text.slice(begin, position).join(""), literal: false });
        }
      }
      const plain = pieces.every((piece) => !piece.literal);
      out.push({ start, pieces, text: plain ? pieces.map((piece) => piece.text).join("") : "" });
    }
  }
  return out;
}

/** The text between quotes and the position after it. A backslash escapes the next character. */
function readQuoted(source: string, text: string[], start: number): [string, number] {
  let content = "";
  let position = start + 1;
  while (position < text.length) {
    if (text[position] === text[start]) return [content, position + 1];
    if (text[position] === "\\") position++;
    content += text[position] ?? "";
    position++;
  }
  throw new SelectorError(
    `the pattern ${shown(source)} has an error at character ${start + 1}: this quote is not closed`,
  );
}
