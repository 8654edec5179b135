import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef, useState } from "react";
import { usePreferences } from "../preferences";
import { count } from "./format";
import { SearchField } from "./SearchField";
import { Exact } from "./Time";
import { MAX_LINES, type ReadLog, useLog } from "./useLog";

interface Props {
  read: ReadLog;
  q: string | undefined;
  level: string | undefined;
  onFilter: (changes: { q?: string | undefined; level?: string | undefined }) => void;
  empty: string;
}

const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"];
const LINE_PX = 20;
const NEAR_END_PX = 40;
// Programs colour their output for terminals; a log shows the text.
// biome-ignore lint/suspicious/noControlCharactersInRegex: the escape character is what begins a colour
const COLOURS = /\u001b\[[0-9;]*[A-Za-z]/g;

export function LogView({ read, q, level, onFilter, empty }: Props) {
  const { isLive } = usePreferences();
  const [isFollowing, setFollowing] = useState(true);
  const { lines, dropped, older, isFull, problem, isRead, loadOlder } = useLog(read, q, level, isLive);
  const scroller = useRef<HTMLDivElement>(null);

  const virtual = useVirtualizer({
    count: lines.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => LINE_PX,
    overscan: 30,
    getItemKey: (index) => lines[index]?.id ?? index,
  });

  const last = lines.at(-1)?.id;
  // biome-ignore lint/correctness/useExhaustiveDependencies: every new last line moves the view
  useEffect(() => {
    if (isFollowing && lines.length) virtual.scrollToIndex(lines.length - 1, { align: "end" });
  }, [last, isFollowing]);

  // The list keeps the height of every line that was ever shown, so it forgets them before they fill the memory.
  const { measure } = virtual;
  const era = Math.floor(dropped / MAX_LINES);

  // biome-ignore lint/correctness/useExhaustiveDependencies: each era begins with nothing
  useEffect(() => measure(), [era, measure]);

  const onScroll = () => {
    const element = scroller.current;
    if (element) setFollowing(element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_END_PX);
  };

  return (
    <>
      <div className="log-head">
        <div className="filters">
          <SearchField
            label="Search in the log"
            placeholder="Search in the log"
            value={q}
            onChange={(text) => onFilter({ q: text })}
          />
          <select
            aria-label="Level"
            value={level ?? ""}
            onChange={(event) => onFilter({ level: event.target.value || undefined })}
          >
            <option value="">All levels</option>
            {LEVELS.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </div>
        <div className="row soft small">
          {problem && <span role="status">{problem}</span>}
          <span>{lines.length === 1 ? "1 line" : `${count(lines.length)} lines`}</span>
          {older && isFull && <span>search for older ones</span>}
          {older && !isFull && (
            <button type="button" className="link" onClick={() => void loadOlder()}>
              Older lines
            </button>
          )}
          <button
            type="button"
            className="link"
            aria-pressed={isFollowing}
            onClick={() => {
              setFollowing(true);
              virtual.scrollToIndex(lines.length - 1, { align: "end" });
            }}
          >
            {isFollowing ? "Following" : "Follow"}
          </button>
        </div>
      </div>
      <div
        className="log-lines"
        ref={scroller}
        onScroll={onScroll}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: people scroll through a log with the keyboard
        tabIndex={0}
        role="log"
        aria-live="off"
        aria-label="Lines"
      >
        {isRead && lines.length === 0 && <p className="log-note soft">{q || level ? "No line matches." : empty}</p>}
        <div className="list-space" style={{ height: virtual.getTotalSize() }}>
          {virtual.getVirtualItems().map((item) => {
            const line = lines[item.index];
            if (!line) return null;

            return (
              <div
                key={item.key}
                ref={virtual.measureElement}
                data-index={item.index}
                className={`log-line ${line.level.toLowerCase()}`}
                style={{ transform: `translateY(${item.start}px)` }}
              >
                <Exact at={line.timestamp} withDate={false} />
                <span className="level">{line.level}</span>
                <span className="message">{highlight(line.message.replace(COLOURS, ""), q)}</span>
              </div>
            );
          })}
        </div>
      </div>
    </>
  );
}

function highlight(text: string, words: string | undefined) {
  if (!words) return text;
  const at = text.toLowerCase().indexOf(words.toLowerCase());
  if (at < 0) return text;

  return (
    <>
      {text.slice(0, at)}
      <mark>{text.slice(at, at + words.length)}</mark>
      {text.slice(at + words.length)}
    </>
  );
}
