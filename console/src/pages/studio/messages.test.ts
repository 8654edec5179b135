import { describe, expect, test } from "vitest";
import { addChunk, asBlocks, getMessages, type Message, parseModelCall, toItems } from "./messages";

function chunk(fields: object): Message {
  return { id: "m", type: "AIMessageChunk", content: "", ...fields } as Message;
}

describe("the messages of a state", () => {
  test("get ids and the types of whole messages", () =>
    expect(
      getMessages({
        messages: [
          { type: "AIMessageChunk", content: "a" },
          { id: "x", type: "human", content: "b" },
        ],
      }),
    ).toEqual([
      { id: "at-0", type: "ai", content: "a" },
      { id: "x", type: "human", content: "b" },
    ]));
  test.each([[null], [{}], [{ messages: "text" }], [[1]]])("are none in %j", (values) =>
    expect(getMessages(values)).toEqual([]),
  );
});

describe("pieces of a message", () => {
  test("are joined to its text", () => {
    const first = addChunk(undefined, chunk({ content: "Hel" }));
    expect(addChunk(first, chunk({ content: "lo" }))).toMatchObject({ type: "ai", content: "Hello" });
  });
  test("keep blocks of different types apart", () => {
    const first = addChunk(undefined, chunk({ content: [{ type: "thinking", thinking: "hm" }] }));
    const second = addChunk(
      first,
      chunk({
        content: [
          { type: "thinking", thinking: "m" },
          { type: "text", text: "a" },
        ],
      }),
    );
    expect(addChunk(second, chunk({ content: "b" })).content).toEqual([
      { type: "thinking", thinking: "hmm" },
      { type: "text", text: "ab" },
    ]);
  });
  test("give the arguments of each tool call by its index", () => {
    const pieces = [
      { index: 0, id: "1", name: "add", args: '{"a"' },
      { index: 1, id: "2", name: "see", args: "{}" },
      { index: 0, args: ":1}" },
    ];
    const message = pieces.reduce<Message | undefined>(
      (before, piece) => addChunk(before, chunk({ tool_call_chunks: [piece] })),
      undefined,
    );
    expect(message?.tool_calls).toEqual([
      { id: "1", name: "add", args: { a: 1 } },
      { id: "2", name: "see", args: {} },
    ]);
  });
  test("are replaced by the whole message", () => {
    const first = addChunk(undefined, chunk({ content: "Hel" }));
    expect(addChunk(first, { id: "m", type: "ai", content: "Bye" })).toEqual({ id: "m", type: "ai", content: "Bye" });
  });
});

test("results of tools go to the messages that called them", () => {
  const call = { id: "c1", name: "add", args: {} };
  const caller: Message = { id: "1", type: "ai", content: "", tool_calls: [call] };
  const result: Message = { id: "2", type: "tool", content: "3", tool_call_id: "c1" };
  const stray: Message = { id: "3", type: "tool", content: "4", tool_call_id: "other" };

  const items = toItems([caller, result, stray]);

  expect(items.map((item) => item.message.id)).toEqual(["1", "3"]);
  expect(items[0]?.results.get("c1")).toBe(result);
});

test("content of any form is a list of blocks", () => {
  expect(asBlocks("")).toEqual([]);
  expect(asBlocks("a")).toEqual([{ type: "text", text: "a" }]);
  expect(asBlocks(["a", { type: "image" }])).toEqual([{ type: "text", text: "a" }, { type: "image" }]);
});

test("the id of a message names the call of its model, and newer ones the time of it", () => {
  const [timed, random] = ["019bb3f0-9c00-7abc-8def-0123456789ab", "1e0dc2a4-5f1b-4abc-8def-0123456789ab"];
  expect(parseModelCall(`lc_run--${timed}`)).toEqual({ call: timed, beganAt: 0x019bb3f09c00 });
  expect(parseModelCall(`run-${random}-0`)).toEqual({ call: random });
  expect(parseModelCall("human-1")).toEqual({});
});
