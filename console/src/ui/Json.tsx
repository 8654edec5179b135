// Any JSON as a tree that opens. What is large is shown in part; the whole of it can be copied and downloaded.

import { useState } from "react";
import { CopyButton } from "./Copy";
import { Icon } from "./Icon";

export const PREVIEW_CHARS = 4096;
const PREVIEW_ENTRIES = 50;
const SUMMARY_CHARS = 80;
// More than this makes a page slow; it is for a file.
const SHOWN_AT_MOST_CHARS = 200_000;

interface Props {
  value: unknown;
  // Names the value in the labels of its buttons, and the file of a download.
  name: string;
  // Levels that are open at first.
  open?: number;
}

export function Json({ value, name, open = 1 }: Props) {
  return (
    <div className="json">
      <div className="json-tools">
        <CopyButton text={() => toText(value)} what={name} />
        <DownloadButton value={value} name={name} />
      </div>
      {isBranch(value) ? (
        <Branch value={value} label={null} open={open} name={name} />
      ) : (
        <Leaf value={value} name={name} />
      )}
    </div>
  );
}

function Branch({ value, label, open, name }: { value: object; label: string | null; open: number; name: string }) {
  const [isOpen, setOpen] = useState(open > 0);
  const [limit, setShown] = useState(PREVIEW_ENTRIES);

  const isArray = Array.isArray(value);
  const count = isArray ? value.length : Object.keys(value).length;

  return (
    <div className="json-branch">
      <button type="button" className="json-toggle" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <Icon name={isOpen ? "down" : "right"} />
        {label !== null && <span className="json-key">{label}</span>}
        <span className="soft">{isOpen ? countText(count, isArray) : summarize(value)}</span>
      </button>
      {isOpen && (
        <ul>
          {getEntries(value, limit).map(([key, each]) => (
            <li key={key}>
              {isBranch(each) ? (
                <Branch value={each} label={key} open={open - 1} name={key} />
              ) : (
                <div className="json-entry">
                  <span className="json-key">{key}</span>
                  <Leaf value={each} name={key} />
                </div>
              )}
            </li>
          ))}
          {count > limit && (
            <li>
              <button type="button" className="link" onClick={() => setShown(limit + 10 * PREVIEW_ENTRIES)}>
                {(count - limit).toLocaleString("en")} more in {name}
              </button>
            </li>
          )}
        </ul>
      )}
    </div>
  );
}

function Leaf({ value, name }: { value: unknown; name: string }) {
  if (typeof value === "string") return <LongText text={value} name={name} isQuoted />;
  return <span className={`json-value ${value === null ? "null" : typeof value}`}>{String(value)}</span>;
}

/** A text, of which only the first 4 KB are shown until somebody asks for more. */
export function LongText({ text, name, isQuoted = false }: { text: string; name: string; isQuoted?: boolean }) {
  const [shown, setShown] = useState(PREVIEW_CHARS);
  const part = text.length > shown ? text.slice(0, shown) : text;

  return (
    <span className={isQuoted ? "json-value string" : "long-text"}>
      {isQuoted ? `"${part}${part === text ? '"' : ""}` : part}
      {part !== text && (
        <span className="long-text-more">
          … {bytes(text.length)} in all{" "}
          {shown < SHOWN_AT_MOST_CHARS && (
            <button type="button" className="link" onClick={() => setShown(SHOWN_AT_MOST_CHARS)}>
              Show more
            </button>
          )}{" "}
          <DownloadButton value={text} name={name} />
        </span>
      )}
    </span>
  );
}

function DownloadButton({ value, name }: { value: unknown; name: string }) {
  return (
    <button
      type="button"
      className="copy"
      title={`Download ${name}`}
      aria-label={`Download ${name}`}
      onClick={() => download(value, name)}
    >
      <Icon name="download" />
    </button>
  );
}

function download(value: unknown, name: string) {
  const isText = typeof value === "string";
  const blob = new Blob([isText ? value : toText(value)], { type: isText ? "text/plain" : "application/json" });
  saveFile(blob, `${name.replace(/[^\w.-]+/g, "-")}.${isText ? "txt" : "json"}`);
}

/** Let the browser save something under a name. */
export function saveFile(blob: Blob, fileName: string) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = fileName;
  link.click();
  URL.revokeObjectURL(link.href);
}

function toText(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** A value in one line of at most so many characters, without writing out the whole of it. */
export function summarize(value: unknown, chars = SUMMARY_CHARS): string {
  const text = brief(value, chars);
  return text.length > chars ? `${text.slice(0, chars - 1)}…` : text;
}

function brief(value: unknown, left: number): string {
  if (typeof value === "string") return JSON.stringify(value.slice(0, left + 1));
  if (!isBranch(value)) return String(value);

  const isArray = Array.isArray(value);
  let text = isArray ? "[" : "{";
  for (const [key, each] of getEntries(value, left)) {
    if (text.length > left) break;
    if (text.length > 1) text += ", ";
    text += isArray ? brief(each, left - text.length) : `${key}: ${brief(each, left - text.length)}`;
  }

  return `${text}${isArray ? "]" : "}"}`;
}

function getEntries(value: object, count: number): [string, unknown][] {
  if (Array.isArray(value)) return value.slice(0, count).map((each, index) => [String(index), each]);
  return Object.entries(value).slice(0, count);
}

export function isBranch(value: unknown): value is object {
  return typeof value === "object" && value !== null;
}

function countText(count: number, isArray: boolean): string {
  const word = isArray ? (count === 1 ? "item" : "items") : count === 1 ? "field" : "fields";
  return `${count.toLocaleString("en")} ${word}`;
}

// In powers of ten, as the commands and the settings count.
export function bytes(count: number): string {
  if (count < 1e3) return `${count} B`;
  if (count < 1e6) return `${(count / 1e3).toFixed(count < 1e4 ? 1 : 0)} KB`;
  if (count < 1e9) return `${(count / 1e6).toFixed(1)} MB`;
  return `${(count / 1e9).toFixed(1)} GB`;
}
