// Pauses between attempts: longer each time, never exactly the same.

export interface BackoffOptions {
  /** The first pause in ms. */
  first: number;
  /** The longest pause in ms. */
  most: number;
  /** Between 0 and 1; tests set it. */
  random?: () => number;
}

export class Backoff {
  private failures = 0;

  constructor(private readonly options: BackoffOptions) {}

  /** The next pause in ms: doubled each time, of which the last quarter is left to chance. */
  next(): number {
    const { first, most, random = Math.random } = this.options;
    const full = Math.min(most, first * 2 ** Math.min(this.failures, 30));
    this.failures += 1;
    return Math.round(full * (0.75 + 0.25 * random()));
  }

  /** Something worked. */
  reset(): void {
    this.failures = 0;
  }

  get count(): number {
    return this.failures;
  }
}

/** Waits, or until `signal` is aborted; says whether the time was over. */
export function pause(ms: number, signal?: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve(false);
    const done = (over: boolean) => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", aborted);
      resolve(over);
    };
    const aborted = () => done(false);
    const timer = setTimeout(() => done(true), ms);
    signal?.addEventListener("abort", aborted, { once: true });
  });
}
