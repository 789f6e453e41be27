// Time as the server counts it, whatever this machine's clock says.

import { signal } from "@preact/signals";

/**
 * How far this machine's clock is ahead of the server's.
 *
 * The `Date` header is cut to whole seconds, so one answer only says that the server's time was within a
 * second somewhere between asking and hearing. Each answer narrows that interval; an answer outside of
 * it means that a clock was set, and the estimate begins anew.
 */
export class Skew {
  private low = Number.NEGATIVE_INFINITY;
  private high = Number.POSITIVE_INFINITY;

  /** An answer that was asked for at `sent` and heard at `received` carried this date (all in ms). */
  sample(sent: number, received: number, date: number): void {
    if (!Number.isFinite(date)) return;
    const low = sent - (date + 1000);
    const high = received - date;
    if (low > this.high || high < this.low) {
      this.low = low;
      this.high = high;
    } else {
      this.low = Math.max(this.low, low);
      this.high = Math.min(this.high, high);
    }
  }

  /** The best guess, in ms. */
  get value(): number {
    return Number.isFinite(this.low) ? (this.low + this.high) / 2 : 0;
  }

  /** How wrong it can be, in ms. */
  get error(): number {
    return Number.isFinite(this.low) ? (this.high - this.low) / 2 : Number.POSITIVE_INFINITY;
  }
}

export const skew = new Skew();

/** This machine's time in ms, on a clock that nobody sets. */
export const local = (): number => performance.timeOrigin + performance.now();

/** The server's time in ms. */
export const serverNow = (): number => local() - skew.value;

/** Milliseconds until a moment that the server named; negative when it is over. */
export const until = (time: string): number => Date.parse(time) - serverNow();

/** The server's time, moving on four times a second: components that read it are drawn again. */
export const now = signal(serverNow());
if (typeof document !== "undefined") {
  setInterval(() => {
    if (!document.hidden) now.value = serverNow();
  }, 250);
}

/** A length of time for people: `< 0.1 s`, `0.4 s`, `12 s`, `3 min 20 s`, `5 h 2 min`, `3 d 4 h`. */
export function duration(ms: number): string {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds > 0 && seconds < 0.1) return "< 0.1 s";
  if (seconds < 10) return `${(Math.floor(seconds * 10) / 10).toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const pair = (large: number, a: string, small: number, b: string): string => (small > 0 ? `${large} ${a} ${small} ${b}` : `${large} ${a}`);
  const whole = Math.floor(seconds);
  if (whole < 3600) return pair(Math.floor(whole / 60), "min", whole % 60, "s");
  if (whole < 86_400) return pair(Math.floor(whole / 3600), "h", Math.floor((whole % 3600) / 60), "min");
  return pair(Math.floor(whole / 86_400), "d", Math.floor((whole % 86_400) / 3600), "h");
}

/** How long ago, in one unit: what does not change every moment is easier to read. */
export function ago(ms: number): string {
  const seconds = Math.floor(Math.max(0, ms) / 1000);
  if (seconds < 2) return "just now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}

const two = (value: number): string => String(value).padStart(2, "0");

/** A moment as the time of day, with the date when it is not today. */
export function clock(time: string | number | undefined | null): string {
  if (time === undefined || time === null) return "";
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return "";
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const hours = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return new Date().toDateString() === date.toDateString() ? hours : `${day} ${hours}`;
}

const thousands = new Intl.NumberFormat("en-US");

/** A number for people: `100,000`. */
export const count = (value: number): string => thousands.format(value);

/** `1 lease`, `2 leases`. */
export const plural = (value: number, one: string, many = `${one}s`): string => `${count(value)} ${value === 1 ? one : many}`;
