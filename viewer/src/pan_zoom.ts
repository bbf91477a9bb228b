// Pan and zoom of an SVG: wheel, drag, pinch, and moves by program.

export interface Bounds {
  x: number;
  y: number;
  width: number;
  height: number;
}

const MIN_SCALE = 0.02;
const MAX_SCALE = 4;
const DURATION = 180;
const DRAG_START = 4;

export class PanZoom {
  x = 0;
  y = 0;
  scale = 1;
  /** Whether the last press moved the drawing, so that the click that follows is none. */
  dragged = false;
  private pointers = new Map<number, { x: number; y: number }>();
  private animation = 0;

  constructor(
    private readonly svg: SVGSVGElement,
    private readonly content: SVGGElement,
    private readonly changed: () => void,
  ) {
    svg.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    svg.addEventListener("pointerdown", (event) => this.onDown(event));
    window.addEventListener("pointermove", (event) => this.onMove(event));
    for (const name of ["pointerup", "pointercancel"] as const) {
      window.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
    }
  }

  get viewport(): { width: number; height: number } {
    return { width: this.svg.clientWidth || 1, height: this.svg.clientHeight || 1 };
  }

  zoomBy(factor: number): void {
    const { width, height } = this.viewport;
    this.zoomAt(width / 2, height / 2, factor);
  }

  panBy(dx: number, dy: number): void {
    this.set(this.x + dx, this.y + dy, this.scale);
  }

  /** Show the bounds, as large as fits but not larger than `limit`. */
  show(bounds: Bounds, limit: number, animated: boolean, margin = 32): void {
    const { width, height } = this.viewport;
    const fit = Math.min((width - 2 * margin) / bounds.width, (height - 2 * margin) / bounds.height);
    const scale = clamp(Math.min(fit, limit));
    const x = (width - bounds.width * scale) / 2 - bounds.x * scale;
    const y = (height - bounds.height * scale) / 2 - bounds.y * scale;
    this.moveTo(x, y, scale, animated);
  }

  /** Show the upper end of bounds that are too tall to be readable as a whole. */
  showTop(bounds: Bounds, scale: number): void {
    const { width } = this.viewport;
    this.set((width - bounds.width * scale) / 2 - bounds.x * scale, 24 - bounds.y * scale, scale);
  }

  /** Move as little as needed so that the bounds are visible. */
  keepVisible(bounds: Bounds): void {
    const { width, height } = this.viewport;
    const left = bounds.x * this.scale + this.x;
    const top = bounds.y * this.scale + this.y;
    const right = left + bounds.width * this.scale;
    const bottom = top + bounds.height * this.scale;
    const margin = 24;
    let dx = 0;
    let dy = 0;
    if (right > width - margin) dx = width - margin - right;
    if (left + dx < margin) dx = margin - left;
    if (bottom > height - margin) dy = height - margin - bottom;
    if (top + dy < margin) dy = margin - top;
    if (dx || dy) this.moveTo(this.x + dx, this.y + dy, this.scale, true);
  }

  set(x: number, y: number, scale: number): void {
    cancelAnimationFrame(this.animation);
    this.apply(x, y, scale);
  }

  private moveTo(x: number, y: number, scale: number, animated: boolean): void {
    if (!animated || reducedMotion()) {
      this.set(x, y, scale);
      return;
    }
    cancelAnimationFrame(this.animation);
    const from = { x: this.x, y: this.y, scale: this.scale };
    const begin = performance.now();
    const step = (now: number): void => {
      const t = Math.min((now - begin) / DURATION, 1);
      const eased = 1 - (1 - t) ** 3;
      const mix = (a: number, b: number): number => a + (b - a) * eased;
      this.apply(mix(from.x, x), mix(from.y, y), mix(from.scale, scale));
      if (t < 1) this.animation = requestAnimationFrame(step);
    };
    this.animation = requestAnimationFrame(step);
  }

  private apply(x: number, y: number, scale: number): void {
    this.x = x;
    this.y = y;
    this.scale = scale;
    this.content.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)}) scale(${scale.toFixed(4)})`);
    this.changed();
  }

  private zoomAt(px: number, py: number, factor: number): void {
    const scale = clamp(this.scale * factor);
    const ratio = scale / this.scale;
    this.set(px - (px - this.x) * ratio, py - (py - this.y) * ratio, scale);
  }

  private onWheel(event: WheelEvent): void {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : 1;
    const box = this.svg.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey || (event.deltaX === 0 && Math.abs(event.deltaY) >= 50)) {
      const speed = event.ctrlKey ? 0.01 : 0.0015;
      this.zoomAt(event.clientX - box.left, event.clientY - box.top, Math.exp(-event.deltaY * unit * speed));
    } else {
      this.panBy(-event.deltaX * unit, -event.deltaY * unit);
    }
  }

  private onDown(event: PointerEvent): void {
    if (event.button > 1) return;
    this.dragged = false;
    this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
  }

  private onMove(event: PointerEvent): void {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const dx = event.clientX - before.x;
    const dy = event.clientY - before.y;
    if (!this.dragged && Math.hypot(dx, dy) < DRAG_START) return;
    this.dragged = true;
    const other = [...this.pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const box = this.svg.getBoundingClientRect();
      const factor = distance(other, { x: event.clientX, y: event.clientY }) / Math.max(distance(other, before), 1);
      this.zoomAt((event.clientX + other.x) / 2 - box.left, (event.clientY + other.y) / 2 - box.top, factor);
      this.panBy(dx / 2, dy / 2);
    } else {
      this.panBy(dx, dy);
    }
    this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
  }
}

export function reducedMotion(): boolean {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

function clamp(scale: number): number {
  return Math.min(Math.max(scale, MIN_SCALE), MAX_SCALE);
}

function distance(a: { x: number; y: number }, b: { x: number; y: number }): number {
  return Math.hypot(a.x - b.x, a.y - b.y);
}
