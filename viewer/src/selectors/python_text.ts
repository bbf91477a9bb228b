// Text as Python sees it: characters are code points, repr() quotes, str.isspace() decides what separates words.

const NOT_PRINTABLE = /[\p{C}\p{Zl}\p{Zp}\p{Zs}]/u;
const SPACES = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/;

export function characters(text: string): string[] {
  return Array.from(text);
}

export function isSpace(character: string): boolean {
  return SPACES.test(character);
}

/** repr() of a string. */
export function repr(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  let out = quote;
  for (const character of text) {
    if (character === quote || character === "\\") out += "\\" + character;
    else if (character === "\n") out += "\\n";
    else if (character === "\r") out += "\\r";
    else if (character === "\t") out += "\\t";
    else if (character !== " " && NOT_PRINTABLE.test(character)) out += escaped(character.codePointAt(0)!);
    else out += character;
  }
  return out + quote;
}

function escaped(code: number): string {
  const hex = code.toString(16);
  if (code <= 0xff) return "\\x" + hex.padStart(2, "0");
  if (code <= 0xffff) return "\\u" + hex.padStart(4, "0");
  return "\\U" + hex.padStart(8, "0");
}

/** The order of Python strings: by code point. */
export function compareText(a: string, b: string): number {
  const left = characters(a);
  const right = characters(b);
  for (let i = 0; i < Math.min(left.length, right.length); i++) {
    const difference = left[i].codePointAt(0)! - right[i].codePointAt(0)!;
    if (difference) return difference;
  }
  return left.length - right.length;
}
