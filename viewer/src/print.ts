// Printing: the whole graph on the page, the whole table, nothing cut off by scrolling.

import type { App } from "./app.ts";
import { byId } from "./dom.ts";
import type { GraphView } from "./graph_view.ts";
import type { TableView } from "./table_view.ts";

export function onPrint(app: App, graph: GraphView, table: TableView): void {
  let restore = (): void => {};
  const root = document.documentElement;
  addEventListener("beforeprint", () => {
    root.dataset["theme"] = "light"; // paper
    if (app.state.view === "graph") {
      restore = graph.prepareToPrint();
    } else if (app.state.view === "table") {
      const printed = table.printed();
      byId("panel-table").append(printed);
      restore = () => printed.remove();
    }
  });
  addEventListener("afterprint", () => {
    restore();
    restore = () => {};
    root.dataset["theme"] = app.theme;
  });
}
