// Files of examples: CSV, whose columns somebody assigns, and lines of JSON.

export interface ExampleDraft {
  inputs: Record<string, unknown>;
  outputs?: Record<string, unknown>;
  metadata?: Record<string, unknown>;
  split?: string | string[];
}

export interface ExampleFile {
  // The columns of a CSV file; none for lines of JSON.
  columns: string[];
  rows: Record<string, unknown>[];
}

const MAX_BYTES = 50 * 1024 * 1024;

/** Says what is wrong with a file, with its line. */
export class FileProblem extends Error {}

export async function readFile(file: File): Promise<ExampleFile> {
  if (file.size > MAX_BYTES) throw new FileProblem("The file has over 50 MB; split it, or use the command line.");
  const text = (await file.text()).replace(/^\ufeff/, "");
  const isJson = /\.(jsonl|ndjson|json)$/i.test(file.name) || text.trimStart().startsWith("{");
  return isJson ? parseLines(text) : parseTable(text);
}

function parseLines(text: string): ExampleFile {
  const rows = text
    .split(/\r?\n/)
    .map((line, index) => ({ line: line.trim(), number: index + 1 }))
    .filter(({ line }) => line)
    .map(({ line, number }) => {
      let value: unknown;
      try {
        value = JSON.parse(line);
      } catch {
        throw new FileProblem(`Line ${number} is not JSON.`);
      }

      if (!isObject(value)) throw new FileProblem(`Line ${number} is not an object.`);
      return value;
    });

  if (rows.length === 0) throw new FileProblem("The file is empty.");
  return { columns: [], rows };
}

// Cells may be quoted, and contain line ends and doubled quotes then.
function parseTable(text: string): ExampleFile {
  const table: string[][] = [];
  let row: string[] = [];
  let cell = "";
  let isQuoted = false;
  for (let at = 0; at < text.length; at += 1) {
    const sign = text[at];
    if (isQuoted) {
      if (sign !== '"') cell += sign;
      else if (text[at + 1] === '"') {
        cell += '"';
        at += 1;
      } else isQuoted = false;
    } else if (sign === '"' && cell === "") isQuoted = true;
    else if (sign === ",") {
      row.push(cell);
      cell = "";
    } else if (sign === "\n") {
      row.push(cell.replace(/\r$/, ""));
      table.push(row);
      row = [];
      cell = "";
    } else cell += sign;
  }

  if (isQuoted) throw new FileProblem("A quote at the end of the file is not closed.");
  if (cell || row.length) table.push([...row, cell.replace(/\r$/, "")]);
  const [columns = [], ...lines] = table;
  const rows = lines.filter((line) => line.some(Boolean));
  if (rows.length === 0) throw new FileProblem("The file has a header at most; every line after it is an example.");
  if (new Set(columns).size !== columns.length) throw new FileProblem("Two columns have the same name.");

  return {
    columns,
    rows: rows.map((line) => Object.fromEntries(columns.map((column, index) => [column, line[index] ?? ""]))),
  };
}

export function toExamples(file: ExampleFile, roles: Record<string, string>): ExampleDraft[] {
  if (file.columns.length === 0) return file.rows.map(toDraft);

  return file.rows.map((row) => {
    const picked = (role: string) =>
      Object.fromEntries(Object.entries(row).filter(([column]) => roles[column] === role));
    const [outputs, metadata] = [picked("outputs"), picked("metadata")];

    return {
      inputs: picked("inputs"),
      ...(Object.keys(outputs).length ? { outputs } : {}),
      ...(Object.keys(metadata).length ? { metadata } : {}),
    };
  });
}

// A line as the download writes it; other lines are inputs as a whole.
function toDraft(row: Record<string, unknown>, index: number): ExampleDraft {
  if (!("inputs" in row)) return { inputs: row };
  const { inputs, outputs, metadata, split } = row;
  if (!isObject(inputs)) throw new FileProblem(`The inputs of example ${index + 1} are not an object.`);

  if (outputs != null && !isObject(outputs)) {
    throw new FileProblem(`The outputs of example ${index + 1} are not an object.`);
  }

  return {
    inputs,
    ...(outputs != null ? { outputs } : {}),
    ...(isObject(metadata) ? { metadata } : {}),
    ...(typeof split === "string" || Array.isArray(split) ? { split } : {}),
  };
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
