// What a stack trace says to whoever wrote the agent: the error, and the innermost line of their own code.

export interface OwnLine {
  file: string;
  line: string;
  where: string;
  code: string;
}

const PYTHON = /^\s*File "([^"]+)", line (\d+), in (.+)$/;
const JAVASCRIPT = /^\s*at (?:(.+?) \()?(?:file:\/\/)?(\/[^():]+):(\d+):\d+\)?$/;
// Libraries, interpreters, and this platform.
const FOREIGN =
  /site-packages|dist-packages|node_modules|\/lib\/python3|^<|^node:|\/portside\/(executor|agent|kernel)\/|executor_js/;
const SHOWN_PARTS = 3;

/** The error itself: the text before a stack trace, else its last line. */
export function errorHead(text: string): string {
  const lines = text.split("\n").filter((line) => line.trim());
  const [before = ""] = text.split("Traceback (most recent call last):", 1);
  if (before.trim() && before !== text) return before.trim();
  const stack = lines.findIndex((line) => JAVASCRIPT.test(line));
  if (stack > 0) return lines.slice(0, stack).join("\n");
  if (!text.includes("Traceback (most recent call last):")) return text;

  return lines.findLast((line) => !line.startsWith(" ") && !line.startsWith("During task with")) ?? text;
}

/** The innermost line of the agent's own code in a stack trace of Python or JavaScript; null if there is none. */
export function findOwnLine(text: string): OwnLine | null {
  const lines = text.split("\n");
  let ownLine: OwnLine | null = null;
  for (const [index, line] of lines.entries()) {
    const python = PYTHON.exec(line);
    if (python) {
      const [, file = "", number = "", where = ""] = python;
      const code = lines[index + 1]?.trim() ?? "";
      if (!FOREIGN.test(file)) ownLine = { file: shorten(file), line: number, where, code };
      continue;
    }

    const javascript = JAVASCRIPT.exec(line);
    if (javascript) {
      const [, where = "", file = "", number = ""] = javascript;
      // The innermost frame of JavaScript comes first.
      if (!FOREIGN.test(file)) return { file: shorten(file), line: number, where, code: "" };
    }
  }

  return ownLine;
}

// A build has the project below `source`; elsewhere the last parts say enough.
function shorten(file: string): string {
  const [, inProject] = file.split("/source/", 2);
  return inProject ?? file.split("/").slice(-SHOWN_PARTS).join("/");
}
