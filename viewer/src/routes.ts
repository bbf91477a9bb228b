// Edges as curves: vertical beside boxes, bending only in the gaps between ranks.

export interface Point {
  x: number;
  y: number;
}

export interface Placed {
  x: number;
  y: number;
  width: number;
  height: number;
}

interface EdgeLabel {
  text: string;
  x: number;
  y: number;
}

export interface Draft {
  edge: { tensors: number[] };
  from: Placed;
  to: Placed;
  points: Point[]; // as laid out: one per rank
  label: EdgeLabel | null;
}

export interface Routed {
  points: Point[];
  label: EdgeLabel | null;
}

type PillAt = (end: Placed, tensor: number, side: "input" | "output") => Placed | null;

interface Rank {
  middle: number;
  top: number;
  bottom: number;
}

const SPREAD = 14;

export function routeAll(drafts: Draft[], boxes: Placed[], pillAt: PillAt): Routed[] {
  const ranks = ranksOf(boxes);
  const starts = spreadEnds(drafts, "from", pillAt);
  const ends = spreadEnds(drafts, "to", pillAt);
  return drafts.map((draft, i) => {
    const backwards = draft.from.y >= draft.to.y + draft.to.height;
    const start = { x: starts[i], y: backwards ? draft.from.y : draft.from.y + draft.from.height };
    const end = { x: ends[i], y: backwards ? draft.to.y + draft.to.height : draft.to.y };
    const points = [start, ...between(draft, ranks, backwards), end];
    return { points, label: draft.label };
  });
}

/** The path through points, with vertical tangents. */
export function curve(points: Point[]): string {
  const [first, ...others] = points;
  let path = `M${round(first.x)} ${round(first.y)}`;
  let previous = first;
  for (const point of others) {
    if (Math.abs(point.x - previous.x) < 0.5) {
      path += `V${round(point.y)}`;
    } else {
      const middle = round((previous.y + point.y) / 2);
      path += `C${round(previous.x)} ${middle} ${round(point.x)} ${middle} ${round(point.x)} ${round(point.y)}`;
    }
    previous = point;
  }
  return path;
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}

function ranksOf(boxes: Placed[]): Rank[] {
  const ranks: Rank[] = [];
  for (const box of boxes) {
    const middle = box.y + box.height / 2;
    const rank = ranks.find((other) => Math.abs(other.middle - middle) < 0.5);
    if (rank) {
      rank.top = Math.min(rank.top, box.y);
      rank.bottom = Math.max(rank.bottom, box.y + box.height);
    } else {
      ranks.push({ middle, top: box.y, bottom: box.y + box.height });
    }
  }
  return ranks;
}

/** The points that keep an edge beside the boxes of the ranks it passes, and at its label. */
function between(draft: Draft, ranks: Rank[], backwards: boolean): Point[] {
  const points: Point[] = [];
  for (const point of draft.points.slice(1, -1)) {
    const rank = ranks.find((other) => Math.abs(other.middle - point.y) < 0.5);
    if (rank) {
      const pair = [{ x: point.x, y: rank.top }, { x: point.x, y: rank.bottom }];
      points.push(...(backwards ? pair.reverse() : pair));
    } else if (draft.label && Math.abs(draft.label.y - point.y) < 0.5) {
      points.push({ x: draft.label.x, y: draft.label.y });
    }
  }
  return points;
}

/** Where edges leave or enter a box: side by side, in the order of where they go; at the pill of an open box. */
function spreadEnds(drafts: Draft[], side: "from" | "to", pillAt: PillAt): number[] {
  const at = new Map<Placed, number[]>();
  drafts.forEach((draft, i) => at.set(draft[side], [...(at.get(draft[side]) ?? []), i]));
  const out = new Array<number>(drafts.length).fill(0);
  for (const [box, indexes] of at) {
    const toward = (i: number): number => {
      const { points } = drafts[i];
      return (side === "from" ? points[1] : points.at(-2)!).x;
    };
    indexes.sort((a, b) => toward(a) - toward(b));
    const step = Math.min(SPREAD, (box.width - 16) / Math.max(indexes.length, 1));
    indexes.forEach((i, position) => {
      const pill = pillAt(box, drafts[i].edge.tensors[0], side === "from" ? "output" : "input");
      out[i] = pill
        ? box.x + pill.x + pill.width / 2
        : box.x + box.width / 2 + (position - (indexes.length - 1) / 2) * step;
    });
  }
  return out;
}
