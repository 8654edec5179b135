import { describe, expect, test } from "vitest";
import type { AuditEntry } from "../../api/platform";
import { describeActor, describeObject } from "./names";

const DEPLOYMENT = "11111111-1111-4111-8111-111111111111";
const REVISION = "22222222-2222-4222-8222-222222222222";
const names = new Map([
  [DEPLOYMENT, "my-agent"],
  ["user", "ada@example.com"],
  ["key", "nightly"],
]);

function createEntry(values: Partial<AuditEntry>): AuditEntry {
  return { object_name: null, object_ids: [], user_email: null, short_key: null, ...values } as AuditEntry;
}

describe("the object of an entry", () => {
  test.each([
    ["the name of that time", { object_name: "before", object_ids: [DEPLOYMENT] }, "before"],
    ["a known id", { object_ids: [DEPLOYMENT] }, "my-agent"],
    ["an id below a known one", { object_ids: [DEPLOYMENT, REVISION] }, "my-agent / 22222222"],
    ["unknown ids", { object_ids: ["gone", REVISION] }, REVISION],
    ["nothing", {}, ""],
  ])("is %s", (_case, values, expected) => expect(describeObject(createEntry(values), names)).toBe(expected));
});

describe("the actor of an entry", () => {
  test.each<[string, Partial<AuditEntry>, string]>([
    ["the address of that time", { user_email: "old@example.com", user_id: "user" }, "old@example.com"],
    ["a member without one", { user_id: "user" }, "ada@example.com"],
    ["a key with its name", { key_id: "key", short_key: "lsv2_sk_1" }, "nightly (lsv2_sk_1)"],
    ["a key that is gone", { key_id: "gone", short_key: "lsv2_sk_1" }, "lsv2_sk_1"],
    ["the platform", { actor_kind: "platform" }, "the platform"],
    ["nobody that is known", { actor_kind: "anonymous" }, "somebody"],
  ])("is %s", (_case, values, expected) => expect(describeActor(createEntry(values), names)).toBe(expected));
});
