import type { Example, Version } from "../../api/platform";

export function getSplits(example: Example): string[] {
  const split = (example.metadata as { dataset_split?: unknown } | undefined)?.dataset_split;
  if (Array.isArray(split)) return split.map(String);
  return split ? [String(split)] : ["base"];
}

// A version by its tags, or by its number and time.
export function versionName(version: Version): string {
  const tags = version.tags.length ? ` (${version.tags.join(", ")})` : "";
  return `${version.number}: ${version.as_of.slice(0, 19).replace("T", " ")} UTC${tags}`;
}
