import { describe, expect, it } from "vitest";
import { Skew, ago, count, duration, plural } from "../src/lib/time";

describe("skew", () => {
  it("narrows with every answer, although dates are cut to seconds", () => {
    const skew = new Skew();
    // The server is 5,300 ms behind; each answer takes 40 ms.
    for (let at = 1_000_000; at < 1_010_000; at += 730) {
      const server = at + 20 - 5300;
      skew.sample(at, at + 40, Math.floor(server / 1000) * 1000);
    }
    expect(Math.abs(skew.value - 5300)).toBeLessThan(150);
    expect(skew.error).toBeLessThan(300);
    expect(Math.abs(skew.value - 5300)).toBeLessThanOrEqual(skew.error);
  });

  it("begins anew when a clock was set", () => {
    const skew = new Skew();
    skew.sample(10_000, 10_010, 10_000);
    skew.sample(20_000, 20_010, 90_000);
    expect(Math.abs(skew.value + 70_500)).toBeLessThan(510);
  });

  it("is zero before the first answer, and ignores answers without a date", () => {
    const skew = new Skew();
    skew.sample(1, 2, Number.NaN);
    expect(skew.value).toBe(0);
  });
});

describe("words for numbers", () => {
  it("says lengths of time with at most two units", () => {
    expect(duration(0)).toBe("0.0 s");
    expect(duration(12)).toBe("< 0.1 s");
    expect(duration(450)).toBe("0.4 s");
    expect(duration(9_990)).toBe("9.9 s");
    expect(duration(12_000)).toBe("12 s");
    expect(duration(200_000)).toBe("3 min 20 s");
    expect(duration(180_000)).toBe("3 min");
    expect(duration(18_120_000)).toBe("5 h 2 min");
    expect(duration(273_600_000)).toBe("3 d 4 h");
    expect(duration(-5)).toBe("0.0 s");
  });

  it("says how long ago, and counts", () => {
    expect([ago(500), ago(59_000), ago(61_000), ago(7_300_000), ago(90_000_000)]).toEqual(["just now", "59 s ago", "1 min ago", "2 h ago", "1 d ago"]);
    expect(count(100_000)).toBe("100,000");
    expect([plural(1, "lease"), plural(2, "lease")]).toEqual(["1 lease", "2 leases"]);
  });
});
