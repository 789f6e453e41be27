// Checks of a camera's form as one types, by the same rules as the server's.

import { fault, type Point } from "./polygon";

export interface ZoneForm {
  zone_id: number;
  name: string;
  kind: "include" | "exclude";
  priority: number;
  polygon: Point[];
  allow_labels: string[];
  min_score: number | null;
}

export interface CameraForm {
  camera_uuid: string;
  rtsp_url: string;
  min_score: number;
  iou_threshold: number;
  zone_test: "center" | "center+iou";
  allow_labels: string[];
  required_capabilities: string[];
  deployment_group: string;
  zones: ZoneForm[];
}

export type Faults = Record<string, string>;

const NAME = /^[A-Za-z0-9._-]{1,255}$/;
const SOURCE = /^(rtsp|rtsps|http|https|file):\/\/\S+$/;
const NAME_RULE = "1 to 255 letters, digits, dots, dashes or underscores.";

const bytes = (text: string): number => new TextEncoder().encode(text).length;
const unit = (value: number): boolean => Number.isFinite(value) && value >= 0 && value <= 1;
const labels = (list: string[]): boolean => list.length <= 256 && list.every((label) => label.length > 0 && bytes(label) <= 64);

/** Everything that is wrong, by field. */
export function check(form: CameraForm): Faults {
  const faults: Faults = {};
  if (!NAME.test(form.camera_uuid)) faults["camera_uuid"] = NAME_RULE;
  if (!SOURCE.test(form.rtsp_url)) faults["rtsp_url"] = "An rtsp, rtsps, http, https or file address without spaces.";
  else if (bytes(form.rtsp_url) > 2048) faults["rtsp_url"] = "At most 2048 bytes.";
  if (!unit(form.min_score)) faults["min_score"] = "A number from 0 to 1.";
  if (!unit(form.iou_threshold)) faults["iou_threshold"] = "A number from 0 to 1.";
  if (!labels(form.allow_labels)) faults["allow_labels"] = "At most 256 labels of at most 64 bytes.";
  if (!labels(form.required_capabilities)) faults["required_capabilities"] = "At most 256 of at most 64 bytes.";
  if (form.deployment_group !== "" && !NAME.test(form.deployment_group)) faults["deployment_group"] = NAME_RULE;
  if (form.zones.length > 256) faults["zones"] = "At most 256 zones.";
  const seen = new Set<number>();
  form.zones.forEach((zone, index) => {
    const at = (field: string) => `zones[${index}].${field}`;
    if (!Number.isInteger(zone.zone_id) || zone.zone_id < 1) faults[at("zone_id")] = "A whole number of at least 1.";
    else if (seen.has(zone.zone_id)) faults[at("zone_id")] = `Another zone has the number ${zone.zone_id}.`;
    seen.add(zone.zone_id);
    if (zone.name === "" || bytes(zone.name) > 255) faults[at("name")] = "1 to 255 bytes.";
    if (zone.min_score !== null && !unit(zone.min_score)) faults[at("min_score")] = "A number from 0 to 1, or nothing.";
    const outline = fault(zone.polygon);
    if (outline) faults[at("polygon")] = outline;
  });
  return faults;
}
