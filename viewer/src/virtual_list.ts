// A long list of rows of equal height: only those in view are in the document.

const MARGIN = 12;

export class VirtualList {
  private count = 0;
  private first = -1;
  private last = -1;
  private readonly body: HTMLElement;

  constructor(
    private readonly scroller: HTMLElement,
    host: HTMLElement, // inside the scroller; what is above it there stays in view
    private readonly rowHeight: number,
    private readonly row: (index: number) => HTMLElement,
  ) {
    this.body = document.createElement("div");
    this.body.className = "virtual-body";
    this.body.setAttribute("role", "presentation");
    host.append(this.body);
    scroller.addEventListener("scroll", () => this.render(false), { passive: true });
    new ResizeObserver(() => this.render(false)).observe(scroller);
  }

  setCount(count: number): void {
    this.count = count;
    this.render(true);
  }

  refresh(): void {
    this.render(true);
  }

  scrollTo(index: number): void {
    const top = index * this.rowHeight;
    const { scrollTop, clientHeight } = this.scroller;
    const bottom = top + this.rowHeight + this.body.offsetTop;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (bottom > scrollTop + clientHeight) this.scroller.scrollTop = bottom - clientHeight;
    this.render(false);
  }

  private render(force: boolean): void {
    const height = this.scroller.clientHeight || 600;
    const first = Math.max(Math.floor(this.scroller.scrollTop / this.rowHeight) - MARGIN, 0);
    const last = Math.min(Math.ceil((this.scroller.scrollTop + height) / this.rowHeight) + MARGIN, this.count);
    if (!force && first === this.first && last === this.last) return;
    const active = document.activeElement;
    const hadFocus = active !== null && this.body.contains(active) ? (active as HTMLElement).dataset["row"] : undefined;
    this.first = first;
    this.last = last;
    this.body.style.paddingTop = `${first * this.rowHeight}px`;
    this.body.style.paddingBottom = `${Math.max(this.count - last, 0) * this.rowHeight}px`;
    const rows: HTMLElement[] = [];
    for (let i = first; i < last; i++) {
      const element = this.row(i);
      element.dataset["row"] = String(i);
      rows.push(element);
    }
    this.body.replaceChildren(...rows);
    if (hadFocus !== undefined) rows.find((row) => row.dataset["row"] === hadFocus)?.focus({ preventScroll: true });
  }
}
