// Outlines of zones, checked by the same rule as the server's: 3 to 512 points whose edges do not cross.

export type Point = [number, number];

export const MAX_POINTS = 512;

/** Whether a part of an outline lies outside of a picture of this size. */
export const outside = (points: readonly Point[], [width, height]: Point): boolean => points.some(([x, y]) => x < 0 || y < 0 || x > width || y > height);

const turn = (a: Point, b: Point, c: Point): number => (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]);
const dot = (from: Point, a: Point, b: Point): number => (a[0] - from[0]) * (b[0] - from[0]) + (a[1] - from[1]) * (b[1] - from[1]);

function within(p: Point, q: Point, r: Point): boolean {
  return (
    turn(p, q, r) === 0 &&
    r[0] >= Math.min(p[0], q[0]) &&
    r[0] <= Math.max(p[0], q[0]) &&
    r[1] >= Math.min(p[1], q[1]) &&
    r[1] <= Math.max(p[1], q[1])
  );
}

function cross(a: Point, b: Point, c: Point, d: Point): boolean {
  const proper = turn(a, b, c) > 0 !== turn(a, b, d) > 0 && turn(c, d, a) > 0 !== turn(c, d, b) > 0;
  const touching = within(a, b, c) || within(a, b, d) || within(c, d, a) || within(c, d, b);
  const flat = turn(a, b, c) === 0 || turn(a, b, d) === 0 || turn(c, d, a) === 0 || turn(c, d, b) === 0;
  return touching || (proper && !flat);
}

/** What is wrong with an outline, in words; nothing when it is fine. */
export function fault(points: readonly Point[]): string | undefined {
  const count = points.length;
  if (count < 3) return `An outline needs 3 points; this one has ${count}.`;
  if (count > MAX_POINTS) return `An outline has at most ${MAX_POINTS} points.`;
  if (points.flat().some((number) => !Number.isFinite(number))) return "Every point needs two numbers.";
  const at = (index: number): Point => points[index % count] as Point;
  for (let first = 0; first < count; first += 1) {
    const [a, b] = [at(first), at(first + 1)];
    if (dot(a, b, b) === 0) return `Points ${first + 1} and ${((first + 1) % count) + 1} are the same.`;
    for (let second = first + 1; second < count; second += 1) {
      const [c, d] = [at(second), at(second + 1)];
      const next = second === first + 1;
      const last = first === 0 && second === count - 1;
      if (next || last) {
        const [shared, one, other] = next ? [b, a, d] : [a, b, c];
        if (turn(one, shared, other) === 0 && dot(shared, one, other) > 0) return "An edge folds back onto the one before it.";
      } else if (cross(a, b, c, d)) {
        return `The edge after point ${first + 1} crosses the one after point ${second + 1}.`;
      }
    }
  }
  return undefined;
}
