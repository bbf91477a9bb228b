// Build the page of `modelexport view`: one HTML file with its styles and its script, and a policy that allows no other.

import { build } from "esbuild";
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const HERE = dirname(fileURLToPath(import.meta.url));
const TARGET = join(HERE, "../src/modelexport/viewing/page/template.html");
const BUNDLED = ["@dagrejs/dagre", "@dagrejs/graphlib", "d3-hierarchy"];
const SOURCES = ["build.mjs", "package.json", "package-lock.json", "tsconfig.json"];

const read = (path) => readFileSync(join(HERE, path), "utf8");
const digest = (text) => `'sha256-${createHash("sha256").update(text, "utf8").digest("base64")}'`;

/** The hash of everything that the page is built from; tests/unit/viewing/test_page_template.py computes the same. */
function sourceHash() {
  const files = readdirSync(join(HERE, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(HERE.length + 1).replaceAll("\\", "/"));
  const hash = createHash("sha256");
  for (const path of [...SOURCES, ...files].sort()) hash.update(`${path}\0${read(path)}\0`, "utf8");
  return hash.digest("hex");
}

function licences() {
  return BUNDLED.map((name) => {
    const { version, license } = JSON.parse(read(`node_modules/${name}/package.json`));
    return `${name} ${version} (${license})\n\n${read(`node_modules/${name}/LICENSE`).trim()}`;
  });
}

const common = { bundle: true, minify: true, write: false, charset: "utf8", legalComments: "none", target: "es2022" };
const script = await build({ ...common, entryPoints: [join(HERE, "src/main.ts")], format: "iife" });
const style = await build({ ...common, entryPoints: [join(HERE, "src/style.css")] });
const code = script.outputFiles[0].text.trim();
const css = style.outputFiles[0].text.trim();
if (/<\/script|<!--/i.test(code) || /<\/style/i.test(css)) throw new Error("the script or the styles would end their element");

const policy = `default-src 'none'; script-src ${digest(code)}; style-src ${digest(css)}; img-src data:; base-uri 'none'; form-action 'none'`;
const about = [
  "The page of modelexport view (Apache-2.0), built by `make viewer` from the folder viewer/.",
  `Sources: sha256:${sourceHash()}`,
  "Contains:",
  ...licences(),
].join("\n\n");
if (about.includes("-->")) throw new Error("the licences would end their comment");

const parts = { CSP: policy, STYLE: css, SCRIPT: code };
const page = read("src/page.html")
  .replace(/%(CSP|STYLE|SCRIPT)%/g, (_, name) => parts[name])
  .replace("<head>", () => `<!--\n${about}\n-->\n<head>`);
for (const placeholder of ["__MODEL_DATA__", "__MODEL_TITLE__"]) {
  if (page.split(placeholder).length !== 2) throw new Error(`${placeholder} must be in the page once`);
}
mkdirSync(dirname(TARGET), { recursive: true });
writeFileSync(TARGET, page);
console.log(`wrote ${TARGET}: ${page.length} bytes, script ${code.length}, styles ${css.length}`);
