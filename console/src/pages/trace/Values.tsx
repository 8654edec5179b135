// The data of a run. What is small is shown as messages or as a tree; of what is large the first 4 KB, and a file.

import { useQuery } from "@tanstack/react-query";
import { createContext, useContext, useMemo, useState } from "react";
import { type ApiError, request } from "../../api/client";
import type { RunValue, RunValues } from "../../api/platform";
import { useApi } from "../../api/queries";
import { CopyButton } from "../../ui/Copy";
import { ErrorText } from "../../ui/ErrorText";
import { plain } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { bytes, isBranch, Json, LongText, PREVIEW_CHARS } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { useDownload } from "../../ui/useDownload";
import type { RunState } from "../traces/runs";
import { Chat } from "./Chat";
import { CommandInput, parseCommand } from "./CommandInput";
import { findMessages } from "./messages";

// Read at once with the run; more is read when somebody asks for it.
const READ_CHARS = 100_000;
const SHOWN_AT_MOST = 3_000_000;

const TITLES: Record<string, string> = {
  inputs: "Input",
  outputs: "Output",
  error: "Error",
  extra: "Metadata",
  events: "Events",
  serialized: "Definition",
};

// The token of the link that somebody without a key follows; null for members of the workspace.
export const ShareToken = createContext<string | null>(null);

export function useValues(runId: string, isRunning = false) {
  const token = useContext(ShareToken);
  const query = { chars: READ_CHARS };
  const everyMs = isRunning ? 3_000 : (false as const);

  const own = useApi(
    "GET /runs/{run_id}/values",
    { path: { run_id: runId }, query },
    { everyMs, enabled: token === null },
  );

  const shared = useApi(
    "GET /public/{share_token}/run/{run_id}/values",
    { path: { share_token: token ?? "", run_id: runId }, query },
    { everyMs, enabled: token !== null },
  );

  return token === null ? own : shared;
}

export function findValue(values: RunValues | undefined, name: string): RunValue | undefined {
  return values?.values.find((value) => value.name === name);
}

// The value itself, if it is small enough to have been read.
export function readValue(value: RunValue | undefined): unknown {
  return value?.is_whole ? parseJson(value.text) : undefined;
}

interface Props {
  runId: string;
  value: RunValue;
  // How the run ended: LangGraph reports questions to people and moves to another graph as errors.
  status?: RunState;
}

export function Value({ runId, value, status = "ERROR" }: Props) {
  const [isAll, setAll] = useState(false);
  const token = useContext(ShareToken);
  const whole = useQuery<string, ApiError>({
    queryKey: ["value", runId, value.name],
    queryFn: async ({ signal }) => (await readFile(token, runId, value.name, signal)).text(),
    enabled: isAll,
    // Large, and never the same as another: not kept longer than it is shown.
    gcTime: 0,
    staleTime: Number.POSITIVE_INFINITY,
  });

  const text = value.is_whole ? value.text : whole.data;
  const isFailure = status === "ERROR" || status === "PENDING";
  const heading =
    value.name === "error" && !isFailure
      ? status === "INTERRUPTED"
        ? "Interrupt"
        : "Handed over"
      : (TITLES[value.name] ?? value.name);

  return (
    <section className="value" aria-label={heading}>
      <div className="value-head">
        <h3>{heading}</h3>
        <span className="row tight">
          <span className="soft small number">{bytes(value.bytes)}</span>
          <FileButton runId={runId} name={value.name} what={heading} />
        </span>
      </div>
      {text !== undefined ? (
        <Shown text={text} name={value.name} isFailure={isFailure} />
      ) : (
        <div className="value-cut">
          {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it is scrolled with the keyboard */}
          <pre className="long-text" tabIndex={0}>
            {plain(value.text.slice(0, PREVIEW_CHARS))}…
          </pre>
          <p className="soft">
            The first {bytes(PREVIEW_CHARS)} of {bytes(value.bytes)}.{" "}
            {value.bytes <= SHOWN_AT_MOST ? (
              <button type="button" className="link" onClick={() => setAll(true)} disabled={whole.isFetching}>
                {whole.isFetching ? "Reading…" : "Show all"}
              </button>
            ) : (
              "It is too large to be shown; download it."
            )}
          </p>
          {whole.error && <Problem error={whole.error} />}
        </div>
      )}
    </section>
  );
}

function Shown({ text, name, isFailure }: { text: string; name: string; isFailure: boolean }) {
  const value = useMemo(() => (name === "error" ? plain(text) : parseJson(text)), [text, name]);
  const messages = useMemo(() => (name === "inputs" || name === "outputs" ? findMessages(value) : null), [value, name]);

  const command = name === "inputs" ? parseCommand(value) : null;
  const [isRaw, setRaw] = useState(false);

  if (name === "error" && isFailure) return <ErrorText text={String(value)} />;

  if (name === "error") {
    return (
      <div className="value-text">
        <CopyButton text={text} what="error" />
        <LongText text={String(value)} name="error" />
      </div>
    );
  }

  return (
    <>
      {(messages || command) && (
        <fieldset className="segments small" aria-label="Shown as">
          <button type="button" aria-pressed={!isRaw} onClick={() => setRaw(false)}>
            {command ? "Command" : "Messages"}
          </button>
          <button type="button" aria-pressed={isRaw} onClick={() => setRaw(true)}>
            JSON
          </button>
        </fieldset>
      )}
      {command && !isRaw ? (
        <CommandInput command={command} />
      ) : messages && !isRaw ? (
        <Chat messages={messages} />
      ) : isBranch(value) && Object.keys(value).length === 0 ? (
        <p className="soft">empty</p>
      ) : (
        <Json value={value} name={name} open={2} />
      )}
    </>
  );
}

function FileButton({ runId, name, what }: { runId: string; name: string; what: string }) {
  const token = useContext(ShareToken);
  const download = useDownload();

  const save = () =>
    download.mutate({
      read: () => readFile(token, runId, name),
      fileName: `${runId.slice(-8)}-${name}.${name === "error" ? "txt" : "json"}`,
    });

  return (
    <>
      {download.error && (
        <span role="alert" className="error small">
          {download.error.message}
        </span>
      )}
      <button
        type="button"
        className="copy"
        title={`Download: ${what}`}
        aria-label={`Download: ${what}`}
        disabled={download.isPending}
        onClick={save}
      >
        <Icon name="download" />
      </button>
    </>
  );
}

function readFile(token: string | null, runId: string, name: string, signal?: AbortSignal): Promise<Response> {
  const path = { run_id: runId, name };
  if (token === null) return request("GET /runs/{run_id}/values/{name}", { path }, signal);

  return request(
    "GET /public/{share_token}/run/{run_id}/values/{name}",
    { path: { ...path, share_token: token } },
    signal,
  );
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
