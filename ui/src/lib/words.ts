// Sentences for people. Codes stay where programs read them.

import type { Event, Lease, Owner, Replica, SessionView } from "../api/types";
import { duration } from "./time";

/** Why a session is as it is. */
export function sessionSentence(view: Pick<SessionView, "state" | "reason" | "reason_detail">): string {
  switch (view.reason) {
    case "R_LEASE_BUSY":
      return "Somebody else is watching this service, and it can be streamed only once. Try again when they have stopped.";
    case "R_NO_TUNER":
      return "All tuners are in use. Try again when one is free.";
    case "R_LEASE_EXPIRED":
      return "The session ended because no heartbeat reached the server in time.";
    case "R_LEASE_LOST":
      return "The worker lost its claim on the tuner, so the stream was stopped.";
    case "R_CLIENT_STOP":
      return "The session was stopped.";
    case "R_PIPELINE_FAILED":
      return view.reason_detail ? `The stream failed: ${view.reason_detail}.` : "The stream failed.";
    case "R_PIPELINE_TIMEOUT":
      return "The stream did not start in time. The source may be off the air.";
    case "R_WORKER_LOST":
      return "The worker that ran this stream is gone.";
    case "R_SHUTDOWN":
      return "The server was shut down.";
  }
  switch (view.state) {
    case "new":
      return "Waiting for a worker.";
    case "starting":
      return "Starting the stream.";
    case "running":
      return "The stream is running.";
    case "stopping":
      return "Stopping.";
    case "stopped":
      return "Stopped.";
    case "failed":
      return "Failed.";
    case "ended":
      return "The session was refused before it ran.";
    default:
      return "";
  }
}

/** The state of a session in one word, and how it should look. */
export function sessionTone(state: string | undefined): { word: string; tone: Tone } {
  switch (state) {
    case "running":
      return { word: "Running", tone: "good" };
    case "new":
    case "starting":
      return { word: "Starting", tone: "busy" };
    case "stopping":
      return { word: "Stopping", tone: "busy" };
    case "failed":
      return { word: "Failed", tone: "bad" };
    case "ended":
      return { word: "Refused", tone: "warn" };
    case "stopped":
      return { word: "Stopped", tone: "quiet" };
    default:
      return { word: "No session", tone: "quiet" };
  }
}

export type Tone = "good" | "warn" | "bad" | "busy" | "quiet";

/** What an event means. */
export function eventWords(type: string): { word: string; tone: Tone } {
  switch (type) {
    case "lease_acquired":
      return { word: "Acquired", tone: "good" };
    case "lease_renewed":
      return { word: "Renewed", tone: "quiet" };
    case "lease_released":
      return { word: "Released", tone: "quiet" };
    case "lease_expired":
      return { word: "Expired", tone: "warn" };
    case "lease_revoked":
      return { word: "Revoked", tone: "bad" };
    case "lease_stolen":
      return { word: "Taken over", tone: "bad" };
    case "handoff_offered":
      return { word: "Handoff offered", tone: "busy" };
    case "handoff_prepared":
      return { word: "Handoff prepared", tone: "busy" };
    case "handoff_cancelled":
      return { word: "Handoff cancelled", tone: "warn" };
    case "record_put":
      return { word: "Record saved", tone: "quiet" };
    case "record_removed":
      return { word: "Record removed", tone: "quiet" };
    case "authority_resumed":
      return { word: "Server restarted", tone: "busy" };
    default:
      return { word: type.replaceAll("_", " "), tone: "quiet" };
  }
}

/** One event as a sentence. */
export function eventSentence(event: Pick<Event, "event_type" | "holder" | "detail" | "key">): string {
  const who = event.holder ?? "somebody";
  const why = event.detail ? ` (${event.detail})` : "";
  switch (event.event_type) {
    case "lease_acquired":
      return `${who} acquired it${why}.`;
    case "lease_renewed":
      return `${who} renewed it.`;
    case "lease_released":
      return `${who} released it${why}.`;
    case "lease_expired":
      return `${who} did not renew it in time${why}.`;
    case "lease_revoked":
      return `It was taken from ${who}${why}.`;
    case "lease_stolen":
      return `Another holder took it from ${who}${why}.`;
    case "handoff_offered":
      return `${who} offered to hand it over${why}.`;
    case "handoff_prepared":
      return `The successor of ${who} is prepared${why}.`;
    case "handoff_cancelled":
      return `The handoff was cancelled; ${who} keeps it${why}.`;
    case "record_put":
      return "Its record was saved.";
    case "record_removed":
      return "Its record was removed.";
    case "authority_resumed":
      return event.detail ? `The authority started again: ${event.detail}.` : "The authority started again.";
    default:
      return event.detail ?? "";
  }
}

/** How an owner's time ended. */
export function endSentence(owner: Owner): string {
  if (!owner.ended_by) return "Holds it now.";
  const why = owner.detail ? `: ${owner.detail}` : "";
  switch (owner.ended_by) {
    case "lease_released":
      return owner.detail ? `Released it (${owner.detail}).` : "Released it.";
    case "lease_expired":
      return "Stopped renewing; the lease expired.";
    case "lease_revoked":
      return `Revoked${why}.`;
    case "lease_stolen":
      return `Another holder took it over${why}.`;
    default:
      return `${eventWords(owner.ended_by).word}${why}.`;
  }
}

/** What happens to a lease while its holder cannot reach the server. */
export function outageSentence(lease: Lease): string {
  const policy = lease.on_outage;
  const grace = policy && "grace_seconds" in policy && policy.grace_seconds ? duration(Number(policy.grace_seconds) * 1000) : "";
  switch (policy?.policy) {
    case "hold":
      return `Goes on for up to ${grace} without the server; the key is withheld from others as long.`;
    case "continue":
      return `Goes on for up to ${grace} without the server; the key is free for others meanwhile.`;
    default:
      return "Stops at its deadline when it cannot reach the server.";
  }
}

/** What speaks against a runner, or why a camera moves. */
export function planWords(code: string): string {
  const words: Record<string, string> = {
    inactive: "has not been heard of",
    cordoned: "is cordoned",
    draining: "is draining",
    deployment_group: "belongs to another deployment group",
    capabilities: "lacks a required capability",
    full: "is at its capacity",
    unassigned: "Nobody has it",
    not_eligible: "Its runner may no longer have it",
    balance: "To balance the load",
    kept: "Stays where it is",
    disabled: "It is disabled",
    parked: "It is parked",
  };
  return words[code] ?? code.replaceAll("_", " ");
}

/** "a", "a and b", "a, b and c". */
export const listed = (words: string[]): string => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`);

/** How a server is. */
export function replicaWords(replica: Pick<Replica, "status">): { word: string; tone: Tone } {
  switch (replica.status) {
    case "healthy":
      return { word: "Healthy", tone: "good" };
    case "stale":
      return { word: "Late", tone: "warn" };
    default:
      return { word: "Gone", tone: "bad" };
  }
}

const LEADS: Record<string, string> = { expiry: "expires leases", outbox: "publishes to the broker" };

/** What a server is and does. */
export function replicaSentence(replica: Replica): string {
  if (replica.status === "gone") return `Version ${replica.version}. It ended without a graceful stop; its log says why.`;
  const does = replica.leads.map((task) => LEADS[task] ?? `leads ${task}`);
  const sentences = [does.length > 0 ? `Version ${replica.version}: ${listed(does)} for all.` : `Version ${replica.version}.`];
  if (replica.status === "stale") sentences.push("Its last sign of life is late.");
  if (!replica.store_writable) sentences.push("Its store takes no changes.");
  if (replica.broker_connected === false) sentences.push("It does not reach the broker.");
  return sentences.join(" ");
}

/** A note of the server as a sentence. */
export const sentence = (text: string): string => (text ? `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}` : "");

/** The state of a deployment. */
export function deploymentWords(state: string): { word: string; tone: Tone } {
  switch (state) {
    case "running":
      return { word: "Running", tone: "busy" };
    case "paused":
      return { word: "Paused", tone: "warn" };
    case "done":
      return { word: "Done", tone: "good" };
    case "rolled_back":
      return { word: "Rolled back", tone: "bad" };
    default:
      return { word: state.replaceAll("_", " "), tone: "quiet" };
  }
}
