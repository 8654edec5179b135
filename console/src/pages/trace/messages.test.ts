import { describe, expect, test } from "vitest";
import { findMessages } from "./messages";

describe("messages in traced values", () => {
  test.each([
    ["a message of LangChain", { lc: 1, id: ["langchain", "AIMessage"], kwargs: { content: "hi" } }],
    ["a stored message", { type: "ai", data: { content: "hi" } }],
    ["a request to a provider", { messages: [{ role: "assistant", content: "hi" }] }],
    ["a provider's answer", { choices: [{ message: { role: "assistant", content: "hi" } }] }],
    ["generations of a batch", { generations: [[{ message: { type: "ai", content: "hi" } }]] }],
  ])("%s", (_, value) => expect(findMessages(value)).toMatchObject([{ role: "ai", title: "Assistant", text: "hi" }]));

  test("tool calls are read in both forms", () => {
    const args = { a: 1 };
    const own = findMessages({ role: "ai", content: "", tool_calls: [{ name: "add", args }] });
    const provided = findMessages({
      role: "assistant",
      content: null,
      tool_calls: [{ function: { name: "add", arguments: '{"a":1}' } }],
    });
    expect(own?.[0]?.toolCalls).toEqual([{ name: "add", args }]);
    expect(provided?.[0]?.toolCalls).toEqual([{ name: "add", args }]);
  });
  test("parts that are no text are kept", () =>
    expect(findMessages({ role: "user", content: [{ text: "see" }, { type: "image", url: "u" }] })).toMatchObject([
      { text: "see", others: [{ type: "image", url: "u" }] },
    ]));
  test.each([[null], ["text"], [{ a: 1 }], [[]], [[{ a: 1 }, { b: 2 }]]])("%j has none", (value) =>
    expect(findMessages(value)).toBeNull(),
  );
});
