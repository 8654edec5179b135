// The hook `useStream` of the JavaScript client, rendered without a browser, against the server in the first argument.
// Prints one line of JSON for each thing that a page does with it, like methods.mjs.
import assert from "node:assert/strict";
import { createElement } from "react";
import { act, create } from "react-test-renderer";
import { useStream, FetchStreamTransport } from "@langchain/langgraph-sdk/react";

globalThis.IS_REACT_ACT_ENVIRONMENT = true;
const kept = new Map();
globalThis.window = { sessionStorage: {
  getItem: (key) => kept.get(key) ?? null,
  setItem: (key, value) => void kept.set(key, value),
  removeItem: (key) => void kept.delete(key),
} };
const apiUrl = process.argv[2];
const print = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

async function render(options) {
  const shown = {};
  const Page = () => {
    shown.stream = useStream({ apiUrl, apiKey: null, ...options });
    return null;
  };
  await act(async () => { shown.page = create(createElement(Page)); });
  return shown;
}

async function until(shown, done) {
  const deadline = Date.now() + 120_000;
  while (!done(shown.stream)) {
    if (Date.now() > deadline) throw new Error(`not reached: ${JSON.stringify(shown.stream.values)} ${shown.stream.error}`);
    await act(() => new Promise((resolve) => setTimeout(resolve, 20)));
  }
}

async function check(method, work) {
  try {
    await work();
    print({ method, ok: true });
  } catch (error) {
    print({ method, ok: false, error: String(error?.stack ?? error).slice(0, 1500) });
  }
}

const say = (text) => ({ messages: [{ type: "human", content: text }] });
const contents = (stream) => stream.messages.map((message) => message.content);

await check("hook.submit", async () => {
  const chunks = new Set();
  const shown = await render({ assistantId: "fake_chat" });
  await act(async () => void shown.stream.submit(say("go")));
  await until(shown, (stream) => {
    chunks.add(stream.messages.at(-1)?.content);
    return !stream.isLoading && stream.messages.length === 2;
  });
  assert.deepEqual(contents(shown.stream), ["go", "one two three four"]);
  assert.equal(shown.stream.error, undefined);
  await act(async () => void shown.stream.submit(say("again")));
  await until(shown, (stream) => !stream.isLoading && stream.messages.length === 4);
});

await check("hook.interrupt", async () => {
  // With `onFinish` the hook reads the thread again after each run. Without it, it may keep the interrupt of the first.
  const shown = await render({ assistantId: "approval", onFinish: () => {} });
  await act(async () => void shown.stream.submit({ text: "a" }));
  await until(shown, (stream) => !stream.isLoading && stream.interrupt?.value !== undefined);
  assert.deepEqual(shown.stream.interrupt.value, { question: "approve?", text: "a!" });
  await act(async () => void shown.stream.submit(undefined, { command: { resume: "yes" } }));
  const isAnswered = (stream) => stream.values.text === "done:yes" && stream.interrupt === undefined;
  await until(shown, (stream) => !stream.isLoading && isAnswered(stream));
});

await check("hook.history and branches", async () => {
  const shown = await render({ assistantId: "echo", fetchStateHistory: true });
  await act(async () => void shown.stream.submit(say("first")));
  await until(shown, (stream) => !stream.isLoading && stream.history.length > 0 && stream.messages.length === 2);
  const checkpoint = shown.stream.getMessagesMetadata(shown.stream.messages[0], 0).firstSeenState.parent_checkpoint;
  await act(async () => void shown.stream.submit(say("edited"), { checkpoint }));
  await until(shown, (stream) => !stream.isLoading && contents(stream).at(-1) === "echo: edited");
  await until(shown, (stream) => stream.getMessagesMetadata(stream.messages[0], 0)?.branchOptions?.length === 2);
});

await check("hook.stop", async () => {
  const shown = await render({ assistantId: "slow" });
  await act(async () => void shown.stream.submit({ count: 200, pause_s: 0.05 }));
  await until(shown, (stream) => stream.values.ticks?.length > 0);
  await act(() => shown.stream.stop());
  await until(shown, (stream) => !stream.isLoading);
});

await check("hook.rejoin", async () => {
  const threads = [];
  const options = { assistantId: "slow", reconnectOnMount: true, onThreadId: (id) => threads.push(id) };
  const shown = await render(options);
  await act(async () => void shown.stream.submit({ count: 20, pause_s: 0.1 }, { onDisconnect: "continue", streamResumable: true }));
  await until(shown, (stream) => stream.values.ticks?.length > 1);
  await act(async () => shown.page.unmount());
  const again = await render({ ...options, threadId: threads[0] });
  await until(again, (stream) => !stream.isLoading && stream.values.ticks?.length === 20);
});

await check("hook.error", async () => {
  const shown = await render({ assistantId: "boom" });
  await act(async () => void shown.stream.submit({ n: 0 }));
  await until(shown, (stream) => !stream.isLoading && stream.error !== undefined);
  assert.match(String(shown.stream.error), /kaboom/);
});

await check("hook.transport", async () => {
  const transport = new FetchStreamTransport({
    apiUrl: `${apiUrl}/runs/stream`,
    onRequest: (_url, request) => {
      const { input } = JSON.parse(request.body);
      return { ...request, body: JSON.stringify({ assistant_id: "echo", input, stream_mode: ["values", "messages-tuple"] }) };
    },
  });
  const shown = await render({ transport });
  await act(async () => void shown.stream.submit(say("hi")));
  await until(shown, (stream) => !stream.isLoading && stream.messages.length === 2);
  assert.equal(contents(shown.stream)[1], "echo: hi");
});

process.exit(0);
