// The search box: the query, its results as a list, and the way from one result to the next.

import type { App } from "./app.ts";
import { h, iconButton, iconOf, replaceChildren } from "./dom.ts";
import { grouped } from "./format.ts";
import { selectionText, type Selection } from "./state.ts";

const DELAY = 120;
const MAX_LISTED = 100;

export class SearchBox {
  readonly element: HTMLElement;
  private readonly input: HTMLInputElement;
  private readonly status: HTMLElement;
  private readonly panel: HTMLElement;
  private readonly options: HTMLElement;
  private readonly message: HTMLElement;
  private at = -1;
  private timer = 0;

  constructor(private readonly app: App) {
    this.input = h("input", {
      type: "search",
      id: "search",
      placeholder: "Search: name, path, class:…, op:…",
      "aria-label": "Search by selector or name",
      role: "combobox",
      "aria-expanded": "false",
      "aria-controls": "search-results",
      "aria-autocomplete": "list",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: "false",
      input: () => this.onInput(),
      keydown: (event: KeyboardEvent) => this.onKey(event),
      focus: () => this.showPanel(this.app.state.query !== ""),
    });
    this.status = h("span", { class: "search-status", role: "status" });
    this.message = h("div", { class: "search-message" });
    this.options = h("div", { id: "search-results", role: "listbox", "aria-label": "Results" });
    this.panel = h("div", { class: "search-panel", hidden: true }, this.message, this.options);
    this.element = h(
      "div",
      { class: "search", role: "search" },
      iconOf("search"),
      this.input,
      this.status,
      iconButton("up", "Previous result", () => this.step(-1), "Shift+n"),
      iconButton("down", "Next result", () => this.step(1), "n"),
      this.panel,
    );
    this.element.addEventListener("focusout", (event) => {
      if (!this.element.contains(event.relatedTarget as Node | null)) this.showPanel(false);
    });
    document.addEventListener("pointerdown", (event) => {
      if (!this.element.contains(event.target as Node)) this.showPanel(false);
    });
  }

  focus(): void {
    this.input.focus();
    this.input.select();
  }

  /** Show the results of the state's query. */
  update(): void {
    const { found, state } = this.app;
    if (this.input.value !== state.query && document.activeElement !== this.input) this.input.value = state.query;
    this.at = -1;
    this.element.classList.toggle("has-query", state.query !== "");
    this.element.classList.toggle("has-error", found.error !== "");
    this.input.setAttribute("aria-invalid", String(found.error !== ""));
    replaceChildren(this.message, found.error ? h("div", { class: "search-error", role: "alert" }, found.error) : null, found.summary && h("div", { class: "muted" }, found.summary));
    this.drawOptions();
    this.drawStatus();
    this.showPanel(document.activeElement === this.input && state.query !== "");
  }

  /** Go to the next result, or the previous one. */
  step(direction: number): void {
    const { results } = this.app.found;
    if (!results.length) return;
    this.at = (this.at + direction + results.length) % results.length;
    if (this.at < 0) this.at = 0;
    this.drawStatus();
    this.markOption();
    this.app.reveal(results[this.at]);
  }

  private onInput(): void {
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.app.store.set({ query: this.input.value }), DELAY);
  }

  private onKey(event: KeyboardEvent): void {
    if (event.key === "Escape") {
      if (!this.panel.hidden) this.showPanel(false);
      else if (this.input.value) this.clear();
      else this.input.blur();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      this.commit();
      const { results } = this.app.found;
      const step = event.key === "ArrowDown" ? 1 : -1;
      this.at = Math.min(Math.max(this.at + step, 0), Math.min(results.length, MAX_LISTED) - 1);
      this.showPanel(true);
      this.markOption();
    } else if (event.key === "Enter") {
      this.commit();
      if (this.at < 0 || event.shiftKey) this.step(event.shiftKey ? -1 : 1);
      else this.choose(this.at);
      this.showPanel(false);
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  private clear(): void {
    this.input.value = "";
    this.commit();
  }

  private commit(): void {
    clearTimeout(this.timer);
    if (this.input.value !== this.app.state.query) this.app.store.set({ query: this.input.value });
  }

  private choose(index: number): void {
    this.at = index;
    this.drawStatus();
    this.app.reveal(this.app.found.results[index]);
  }

  private showPanel(show: boolean): void {
    const useful = this.app.found.results.length > 0 || this.app.found.error !== "";
    this.panel.hidden = !show || !useful;
    this.input.setAttribute("aria-expanded", String(!this.panel.hidden));
  }

  private drawStatus(): void {
    const { found, state } = this.app;
    const position = this.at >= 0 && found.count ? `${this.at + 1} of ` : "";
    this.status.textContent = state.query.trim() === "" ? "" : `${position}${grouped(found.count)}`;
  }

  private drawOptions(): void {
    const { results, count } = this.app.found;
    const options = results.slice(0, MAX_LISTED).map((result, i) =>
      h(
        "div",
        {
          class: "option",
          role: "option",
          id: `search-result-${i}`,
          "aria-selected": "false",
          pointerdown: (event: Event) => event.preventDefault(),
          click: () => {
            this.choose(i);
            this.showPanel(false);
          },
        },
        ...this.describe(result),
      ),
    );
    const rest = count - options.length;
    replaceChildren(this.options, ...options, rest > 0 && h("div", { class: "muted more-results" }, `${grouped(rest)} more: Enter goes from one to the next`));
  }

  private describe(result: Selection): HTMLElement[] {
    const { model } = this.app;
    const name = selectionText(model, result).slice(2, 400);
    if (result.type === "call") {
      return [h("span", { class: "what" }, "call"), h("span", { class: "name" }, name || "(root)"), h("span", { class: "muted" }, model.moduleOf(result.call).class.slice(0, 80))];
    }
    if (result.type === "node") {
      return [h("span", { class: "what" }, "node"), h("span", { class: "name" }, name), h("span", { class: "muted" }, model.text(model.data.nodes.op[result.node]).slice(0, 80))];
    }
    const tensor = result.type === "tensor" ? model.describeTensor(result.tensor) : "";
    return [h("span", { class: "what" }, "tensor"), h("span", { class: "name" }, name), h("span", { class: "muted" }, tensor)];
  }

  private markOption(): void {
    const options = [...this.options.querySelectorAll(".option")];
    options.forEach((option, i) => option.setAttribute("aria-selected", String(i === this.at)));
    const current = options[this.at];
    if (current) current.scrollIntoView({ block: "nearest" });
    this.input.setAttribute("aria-activedescendant", current ? current.id : "");
  }
}
