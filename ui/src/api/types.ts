// Short names for what the specification describes.

import type { components } from "./schema";

type Schemas = components["schemas"];

export type Camera = Schemas["Camera"];
export type Deployment = Schemas["Deployment"];
export type Event = Schemas["Event"];
export type EventList = Schemas["EventList"];
export type Explanation = Schemas["Explanation"];
export type History = Schemas["History"];
export type IntentAnswer = Schemas["IntentAnswer"];
export type Lease = Schemas["Lease"];
export type LeaseSearch = Schemas["LeaseSearch"];
export type Me = Schemas["Me"];
export type Minute = Schemas["Minute"];
export type NodeList = Schemas["NodeList"];
export type NodeTarget = Schemas["NodeTarget"];
export type Overview = Schemas["Overview"];
export type Owner = Schemas["Owner"];
export type Plan = Schemas["Plan"];
export type Problem = Schemas["Problem"];
export type ProfileList = Schemas["ProfileList"];
export type Replica = Schemas["Replica"];
export type Runner = Schemas["Runner"];
export type SessionHeartbeat = Schemas["SessionHeartbeat"];
export type SessionList = Schemas["SessionList"];
export type SessionView = Schemas["SessionView"];
export type SiteSummary = Schemas["SiteSummary"];
/** What a watcher gets instead of a gap; streams are not in the specification. */
export interface Snapshot {
  revision: number;
  at: string;
  leases: Lease[];
}
