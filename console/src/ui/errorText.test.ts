import { describe, expect, test } from "vitest";
import { errorHead, findOwnLine } from "./errorText";

const PYTHON = `Traceback (most recent call last):
  File "/opt/venv/lib/python3.13/site-packages/langgraph/pregel.py", line 10, in run
    step()
  File "/data/builds/1/source/agent/graph.py", line 7, in answer
    raise ValueError("no")
  File "/opt/venv/lib/python3.13/json/__init__.py", line 3, in loads
    fail()
ValueError: no`;

const JAVASCRIPT = `TypeError: no
    at inner (/app/node_modules/core/index.js:1:1)
    at answer (file:///data/builds/1/source/src/graph.ts:7:9)
    at main (/data/builds/1/source/src/main.ts:2:1)`;

describe("an error of an agent", () => {
  test("is its last line in a stack trace of Python", () => expect(errorHead(PYTHON)).toBe("ValueError: no"));
  test("is what stands above a stack trace", () => {
    expect(errorHead(`ValueError: no\n\n${PYTHON}`)).toBe("ValueError: no");
    expect(errorHead(JAVASCRIPT)).toBe("TypeError: no");
  });
  test("is the whole text without a stack trace", () =>
    expect(errorHead("It failed.\nTwice.")).toBe("It failed.\nTwice."));
});

describe("the line of the agent's own code", () => {
  test("is the innermost one, with the code where the trace has it", () => {
    expect(findOwnLine(PYTHON)).toEqual({
      file: "agent/graph.py",
      line: "7",
      where: "answer",
      code: 'raise ValueError("no")',
    });
    expect(findOwnLine(JAVASCRIPT)).toEqual({ file: "src/graph.ts", line: "7", where: "answer", code: "" });
  });
  test("is none if only libraries are in the trace", () => expect(findOwnLine("ValueError: no")).toBeNull());
});
