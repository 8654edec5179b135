import { describe, expect, test } from "vitest";
import { getVariables, newMessage, readManifest, toLines, writeManifest } from "./manifest";

const MESSAGES = [
  newMessage("system", "Be brief."),
  newMessage("placeholder", "history"),
  newMessage("human", "{question}"),
];

describe("a manifest", () => {
  test("is read as it was written", () => {
    const prompt = readManifest(writeManifest(null, MESSAGES));
    expect(prompt?.messages.map(({ role, text }) => [role, text])).toEqual([
      ["system", "Be brief."],
      ["placeholder", "history"],
      ["human", "{question}"],
    ]);
    expect(prompt?.variables).toEqual(["history", "question"]);
  });
  test("keeps messages that nobody changed, and the model, as they are", () => {
    const first = { ...writeManifest(null, MESSAGES) };
    const stored = { lc: 1, type: "constructor", id: ["RunnableSequence"], kwargs: { first, last: { model: "m" } } };
    const [system, history] = readManifest(stored)?.messages ?? [];
    const written = writeManifest(
      stored,
      [system, history, newMessage("ai", "Yes.")].filter((each) => each !== undefined),
    );
    expect(
      readManifest(written)
        ?.messages.map((message) => message.raw)
        .slice(0, 2),
    ).toEqual([system?.raw, history?.raw]);
    expect(readManifest(written)?.model).toEqual({ model: "m" });
    expect(readManifest(written)?.variables).toEqual(["history"]);
  });
  test("that is no prompt of messages is left to be edited as JSON", () => {
    expect(readManifest({ id: ["Something"], kwargs: {} })).toBeNull();
    expect(toLines({ a: 1 })).toEqual(["{", '  "a": 1', "}"]);
  });
});

describe("the variables of a prompt", () => {
  test("are those of its format", () => {
    const text = (template: string) => [newMessage("human", template)];
    expect(getVariables(text("{a} and {{b}} and {c:>8}"), "f-string")).toEqual(["a", "c"]);
    expect(getVariables(text("{{a}} {{#b}}{{/b}} {{{c}}}"), "mustache")).toEqual(["a", "b", "c"]);
    expect(getVariables(text("{{ a | upper }}"), "jinja2")).toEqual(["a"]);
  });
  test("are each listed once", () =>
    expect(getVariables([newMessage("human", "{a}{a}"), newMessage("ai", "{a}")], "f-string")).toEqual(["a"]));
});
