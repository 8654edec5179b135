// What pages of traces read of runs, as `POST /v2/runs/query` and `GET /v2/traces/{id}/runs` return it.

type RunType = "CHAIN" | "LLM" | "TOOL" | "RETRIEVER" | "EMBEDDING" | "PROMPT" | "PARSER";
export type RunState = "SUCCESS" | "ERROR" | "PENDING" | "INTERRUPTED";

export interface Span {
  id: string;
  name: string;
  run_type: RunType | string;
  status: RunState;
  start_time: string;
  end_time: string | null;
  parent_run_id: string | null;
  total_tokens: number;
  total_cost: number | null;
}

export interface RunRow extends Span {
  trace_id: string;
  thread_id: string | null;
  tags: string[];
  latency_seconds: number | null;
  inputs_preview: string | null;
  outputs_preview: string | null;
  error_preview: string | null;
  feedback_stats: Record<string, { n: number; avg: number | null }> | null;
}

export const SPAN_SELECTS = [
  "ID",
  "NAME",
  "RUN_TYPE",
  "STATUS",
  "START_TIME",
  "END_TIME",
  "PARENT_RUN_ID",
  "TOTAL_TOKENS",
  "TOTAL_COST",
];

export const ROW_SELECTS = [
  ...SPAN_SELECTS,
  "TRACE_ID",
  "THREAD_ID",
  "TAGS",
  "LATENCY_SECONDS",
  "INPUTS_PREVIEW",
  "OUTPUTS_PREVIEW",
  "ERROR_PREVIEW",
  "FEEDBACK_STATS",
];

// Without a time the platform reads the last day only.
export const EPOCH = "1970-01-01T00:00:00Z";

export const TYPE_WORDS: Record<string, string> = {
  CHAIN: "Chain",
  LLM: "Model",
  TOOL: "Tool",
  RETRIEVER: "Retriever",
  EMBEDDING: "Embedding",
  PROMPT: "Prompt",
  PARSER: "Parser",
};

// Signs of Markdown that only disturb in one line.
const MARKUP = /\*\*|__|`/g;

// The text that says most in a preview: the preview itself if it is a message, or the last content of a piece of JSON.
export function previewText(preview: string | null): string {
  if (!preview) return "";
  if (!/^[[{"]/.test(preview)) return preview.replace(MARKUP, "");
  const resume = /^\{"input":\{"graph":.*?"resume":(.+?)(?:,"goto":|$)/s.exec(preview)?.[1];
  if (resume && resume !== "null") return `Answer: ${resume.replace(/^"|"$/g, "")}`;
  const contents = [
    ...preview.matchAll(/"(?:content|text|input|output|question|answer|query)":\s*"((?:[^"\\]|\\.)*)/g),
  ];
  const content = contents.at(-1)?.[1] ?? preview;

  return content
    .replace(/\\n|\\t/g, " ")
    .replace(/\\(["\\/])/g, "$1")
    .replace(MARKUP, "");
}
