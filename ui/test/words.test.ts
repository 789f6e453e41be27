// Sentences about servers and deployments.

import { expect, test } from "vitest";
import type { Replica } from "../src/api/types";
import { deploymentWords, listed, replicaSentence, replicaWords, sentence } from "../src/lib/words";

const replica = (more: Partial<Replica>): Replica => ({
  name: "a:1",
  address: "http://127.0.0.1:1",
  version: "1.2.0",
  started_at: "2026-01-01T00:00:00Z",
  status: "healthy",
  leads: [],
  store_writable: true,
  ...more,
});

test("a server says what it is, what it leads and what is wrong with it", () => {
  expect(replicaSentence(replica({}))).toBe("Version 1.2.0.");
  expect(replicaSentence(replica({ leads: ["expiry", "outbox"], broker_connected: true }))).toBe("Version 1.2.0: expires leases and publishes to the broker for all.");
  const bad = replica({ status: "stale", store_writable: false, broker_connected: false });
  expect(replicaSentence(bad)).toBe("Version 1.2.0. Its last sign of life is late. Its store takes no changes. It does not reach the broker.");
  expect(replicaSentence(replica({ status: "gone" }))).toMatch(/without a graceful stop/);
  expect(replicaWords(replica({ status: "gone" })).tone).toBe("bad");
});

test("lists and notes read as English", () => {
  expect([[], ["a"], ["a", "b"], ["a", "b", "c"]].map(listed)).toEqual(["", "a", "a and b", "a, b and c"]);
  expect(sentence("waiting for a runner")).toBe("Waiting for a runner.");
  expect(sentence("Done.")).toBe("Done.");
  expect(deploymentWords("rolled_back")).toEqual({ word: "Rolled back", tone: "bad" });
  expect(deploymentWords("quite_new").word).toBe("quite new");
});
