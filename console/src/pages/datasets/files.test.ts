import { describe, expect, test } from "vitest";
import { FileProblem, readFile, toExamples } from "./files";

function read(name: string, text: string) {
  return readFile(new File([text], name));
}

describe("a table", () => {
  test("may have a byte order mark, quoted cells, and line ends of Windows", async () => {
    const { columns, rows } = await read("a.csv", '\ufeffquestion,answer\r\n"a, ""b""\nc",2\r\n\r\n');
    expect(columns).toEqual(["question", "answer"]);
    expect(rows).toEqual([{ question: 'a, "b"\nc', answer: "2" }]);
  });
  test("becomes examples by the roles of its columns", async () => {
    const file = await read("a.csv", "q,a,source,id\n1,2,book,7\n");
    const roles = { q: "inputs", a: "outputs", source: "metadata", id: "none" };
    expect(toExamples(file, roles)).toEqual([
      { inputs: { q: "1" }, outputs: { a: "2" }, metadata: { source: "book" } },
    ]);
  });
  test.each([
    ["a,a\n1,2\n", "Two columns have the same name."],
    ["a,b\n", "The file has a header at most"],
    ['a\n"1\n', "A quote at the end of the file is not closed."],
  ])("is refused if it is %j", async (text, problem) => {
    await expect(read("a.csv", text)).rejects.toThrow(FileProblem);
    await expect(read("a.csv", text)).rejects.toThrow(problem);
  });
});

describe("lines of JSON", () => {
  test("are examples, or inputs as a whole", async () => {
    const file = await read("a.jsonl", '{"inputs": {"q": 1}, "outputs": {"a": 2}, "split": "test"}\n\n{"q": 3}\n');
    expect(toExamples(file, {})).toEqual([
      { inputs: { q: 1 }, outputs: { a: 2 }, split: "test" },
      { inputs: { q: 3 } },
    ]);
  });
  test("are refused with the number of the line", async () => {
    await expect(read("a.jsonl", '{"q": 1}\n\n[]\n')).rejects.toThrow("Line 3 is not an object.");
    await expect(read("a.jsonl", "{\n")).rejects.toThrow("Line 1 is not JSON.");
  });
  test("have objects as inputs", async () => {
    const file = await read("a.jsonl", '{"inputs": 1}\n');
    expect(() => toExamples(file, {})).toThrow("The inputs of example 1 are not an object.");
  });
});
