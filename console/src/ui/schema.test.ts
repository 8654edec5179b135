import { expect, test } from "vitest";
import { getFields, hasMessages } from "./schema";

const SCHEMA = {
  $defs: { Level: { enum: ["low", "high"], title: "Level" } },
  properties: {
    name: { type: "string", default: "Ada" },
    count: { type: "integer" },
    level: { $ref: "#/$defs/Level" },
    free: { type: "object" },
  },
  required: ["name"],
};

test("each field of a schema has the control of its kind", () => {
  const fields = getFields(SCHEMA);
  expect(fields.map(({ name, kind, isRequired }) => [name, kind, isRequired])).toEqual([
    ["name", "text", true],
    ["count", "integer", false],
    ["level", "choice", false],
    ["free", "json", false],
  ]);
  expect(fields[0]?.preset).toBe("Ada");
  expect(fields[2]?.choices).toEqual(["low", "high"]);
});

test("a conversation is a list of messages, or says so", () => {
  expect(hasMessages({ properties: { messages: { type: "array" } } })).toBe(true);
  expect(hasMessages({ properties: { messages: { langgraph_type: "messages", type: "object" } } })).toBe(true);
  expect(hasMessages({ properties: { messages: { type: "string" } } })).toBe(false);
  expect(hasMessages({ properties: {} })).toBe(false);
  expect(hasMessages(null)).toBe(false);
});
