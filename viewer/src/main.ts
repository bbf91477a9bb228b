// The page: reads the data, builds the panes, and connects them to the state.

import { App } from "./app.ts";
import { readPageData } from "./data.ts";
import { Details } from "./details.ts";
import { byId, h, iconButton, replaceChildren } from "./dom.ts";
import { plural, printable } from "./format.ts";
import { GraphView } from "./graph_view.ts";
import { keyList, listenForKeys } from "./keyboard.ts";
import { drawLegend } from "./legend.ts";
import { MapView } from "./map_view.ts";
import { Model } from "./model.ts";
import { onPrint } from "./print.ts";
import { SearchBox } from "./search_box.ts";
import { Selector, SelectorIndex } from "./selectors/evaluate.ts";
import { decodeState, Store, type State, type View } from "./state.ts";
import { TableView } from "./table_view.ts";
import { applyTheme, onSystemTheme, toggleTheme } from "./theme.ts";
import { TreeView } from "./tree_view.ts";

const VIEWS: View[] = ["graph", "map", "table"];

function start(): void {
  const model = new Model(readPageData());
  const store = new Store(model, decodeState(model, location.hash));
  const app = new App(model, store);
  app.theme = applyTheme();
  app.updateSearch();

  const graph = new GraphView(app);
  const map = new MapView(app);
  const table = new TableView(app);
  const tree = new TreeView(app);
  const details = new Details(app);
  const search = new SearchBox(app);
  byId("search-slot").append(search.element);
  byId("tree-slot").append(tree.element);
  byId("details-slot").append(details.element);
  byId("panel-graph").append(graph.element);
  byId("panel-map").append(map.element);
  byId("panel-table").append(table.element);
  replaceChildren(byId("file"), model.data.file);
  byId("file").title = printable(model.data.file);
  byId("counts").textContent = `${plural(model.data.calls.length, "call")}, ${plural(model.nodeCount, "node")}`;

  const controls = new Controls(app);
  const update = (state: State, before: State | null): void => {
    const searched = app.updateSearch();
    showView(state);
    controls.update(state);
    drawLegend(app, byId("legend"));
    graph.update(state, before);
    map.update(state, before);
    table.update(state, before);
    tree.update(state, before);
    details.update(state, before);
    if (searched || !before) search.update();
    document.body.classList.toggle("has-selection", state.selection !== null);
  };
  store.listen(update);

  const retheme = (): void => {
    app.theme = applyTheme();
    graph.themeStale = true;
    tree.redraw();
    update(store.state, store.state);
  };
  onSystemTheme(retheme);
  const help = byId<HTMLDialogElement>("help");
  byId("help-keys").append(keyList());
  const showHelp = (): void => {
    help.showModal();
    byId("help-title").focus();
  };
  byId("bar-end").append(
    iconButton("theme", "Light or dark", () => {
      toggleTheme();
      retheme();
    }),
    h("button", { class: "icon-button", type: "button", "aria-label": "Help and keys", title: "Help and keys (?)", click: showHelp }, "?"),
  );
  byId("close-details").append(iconButton("close", "Close the details", () => app.select(null)));
  setUpNotes(app);
  setUpTabs(app);
  onPrint(app, graph, table);

  const next = (list: { id: string }[], current: string, step: number): string => {
    const ids = list.map(({ id }) => id);
    return ids[(ids.indexOf(current) + step + ids.length) % ids.length];
  };
  const overlays = [{ id: "" }, ...app.overlays];
  const zoom = (factor: number): void => {
    if (store.state.view === "graph") graph.zoomBy(factor);
  };
  listenForKeys({
    "/": () => search.focus(),
    n: () => search.step(1),
    N: () => search.step(-1),
    g: () => (openView(app, "graph"), graph.focusBox()),
    m: () => (openView(app, "map"), map.focus()),
    t: () => (openView(app, "table"), table.focus()),
    o: () => store.set({ overlay: next(overlays, store.state.overlay, 1) }),
    O: () => store.set({ overlay: next(overlays, store.state.overlay, -1) }),
    s: () => store.set({ size: next(app.sizes, app.size().id, 1) }),
    e: () => (showPane("tree"), tree.focus()),
    d: () => details.element.focus(),
    f: () => (store.state.view === "map" ? store.set({ mapRoot: 0 }) : graph.fit()),
    z: () => graph.zoomToSelection(),
    "+": () => zoom(1.3),
    "=": () => zoom(1.3),
    "-": () => zoom(1 / 1.3),
    c: () => graph.closeAll(),
    Escape: () => {
      if (store.state.selection) app.select(null);
      else if (store.state.query) store.set({ query: "" });
      else if (store.state.view === "map") map.zoomOut();
    },
    "?": showHelp,
  });
  update(store.state, null);
  document.documentElement.dataset["ready"] = "true";
  requestAnimationFrame(() => performance.mark("drawn"));
}

/** The choices of overlay, size and shape. */
class Controls {
  private readonly overlay = byId<HTMLSelectElement>("overlay");
  private readonly size = byId<HTMLSelectElement>("size");
  private readonly shape = byId<HTMLSelectElement>("shape");

  constructor(app: App) {
    const option = (id: string, title: string): HTMLElement => h("option", { value: id }, title.slice(0, 80));
    replaceChildren(this.overlay, option("", "None"), ...app.overlays.map(({ id, title }) => option(id, title)));
    replaceChildren(this.size, ...app.sizes.map(({ id, title }) => option(id, title)));
    this.overlay.addEventListener("change", () => app.store.set({ overlay: this.overlay.value }));
    this.size.addEventListener("change", () => app.store.set({ size: this.size.value }));
    this.shape.addEventListener("change", () => app.store.set({ shape: this.shape.value === "treemap" ? "treemap" : "icicle" }));
  }

  update(state: State): void {
    this.overlay.value = [...this.overlay.options].some(({ value }) => value === state.overlay) ? state.overlay : "";
    this.size.value = [...this.size.options].some(({ value }) => value === state.size) ? state.size : "nodes";
    this.shape.value = state.shape;
  }
}

function showPane(pane: "tree" | "view"): void {
  document.body.classList.toggle("shows-tree", pane === "tree");
  byId("tab-tree").setAttribute("aria-selected", String(pane === "tree"));
}

function openView(app: App, view: View): void {
  showPane("view");
  app.store.set({ view });
}

function showView(state: State): void {
  const treeShown = document.body.classList.contains("shows-tree") && getComputedStyle(byId("tab-tree")).display !== "none";
  for (const view of VIEWS) {
    const tab = byId(`tab-${view}`);
    const current = view === state.view;
    tab.setAttribute("aria-selected", String(current && !treeShown));
    tab.tabIndex = current ? 0 : -1;
    byId(`panel-${view}`).hidden = !current;
  }
  document.body.dataset["view"] = state.view;
}

function setUpTabs(app: App): void {
  const tabs = [...document.querySelectorAll<HTMLElement>("#tabs [role=tab]")];
  const choose = (tab: HTMLElement): void => {
    const name = tab.id.replace("tab-", "");
    if (name === "tree") {
      showPane("tree");
      showView(app.state);
    } else {
      openView(app, name as View);
    }
  };
  for (const tab of tabs) tab.addEventListener("click", () => choose(tab));
  byId("tabs").addEventListener("keydown", (event) => {
    const visible = tabs.filter((tab) => tab.offsetParent !== null);
    const at = visible.indexOf(document.activeElement as HTMLElement);
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (at < 0 || !step) return;
    const next = visible[(at + step + visible.length) % visible.length];
    choose(next);
    next.focus();
    event.preventDefault();
  });
  // On a narrow screen, what is chosen in the tree is shown in the view.
  app.store.listen((state, before) => {
    if (state.selection && state.selection !== before.selection) showPane("view");
    showView(state);
  });
}

/** A badge with the number of notes; a click shows them. */
function setUpNotes(app: App): void {
  const { notes } = app.model.data;
  const badge = byId("notes-badge");
  badge.hidden = notes.length === 0;
  badge.textContent = plural(notes.length, "note");
  const dialog = byId<HTMLDialogElement>("notes");
  replaceChildren(byId("notes-list"), ...notes.map((note) => h("li", {}, note.slice(0, 4_000))));
  badge.addEventListener("click", () => dialog.showModal());
}

/** For tests of the selectors: what a selector selects, as ids, or its error. */
function evaluateSelector(text: string, what: "calls" | "nodes", contributors = true): { ids?: string[]; error?: string } {
  const data = readPageData();
  const index = new SelectorIndex(data);
  try {
    const selector = new Selector(text);
    if (what === "calls") return { ids: selector.calls(index).map((call) => data.calls[call].id) };
    return { ids: selector.nodes(index, contributors).map((node) => data.nodes.id[node]) };
  } catch (problem) {
    return { error: (problem as Error).message };
  }
}

declare global {
  interface Window {
    modelexport: { evaluateSelector: typeof evaluateSelector };
  }
}
window.modelexport = { evaluateSelector };

try {
  start();
} catch (problem) {
  const text = problem instanceof Error ? problem.message : String(problem);
  document.body.replaceChildren(h("p", { class: "failure" }, `This page cannot show its data: ${text}`));
  throw problem;
}
