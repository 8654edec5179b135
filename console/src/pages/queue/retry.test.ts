import { expect, test } from "vitest";
import type { Run } from "../../api/agentServer";
import { toRetry } from "./retry";

test("a run is repeated with what it was given, and nothing of how it went", () => {
  const kwargs = {
    input: { q: 1 },
    command: null,
    webhook: "https://example.com/done",
    config: { recursion_limit: 10, configurable: { run_id: "old" } },
    stream_mode: ["values"],
  };

  expect(toRetry({ assistant_id: "agent", kwargs } as unknown as Run)).toEqual({
    assistant_id: "agent",
    multitask_strategy: "enqueue",
    input: { q: 1 },
    webhook: "https://example.com/done",
    config: { recursion_limit: 10 },
  });
});
