import { useVirtualizer } from "@tanstack/react-virtual";
import { type KeyboardEvent, type ReactNode, useEffect, useRef, useState } from "react";
import { Icon } from "../../ui/Icon";
import { MessageCard } from "./MessageCard";
import type { Item } from "./messages";

const GUESS_PX = 96;
const NEAR_END_PX = 80;
const LEAVES_FOR_MS = 500;
const UP_KEYS = new Set(["Home", "PageUp", "ArrowUp"]);

interface Props {
  items: Item[];
  // The message that is being written.
  streaming: string | null;
  // Absent while a run is under way.
  onEdit: ((item: Item) => void) | null;
  onAgain: ((item: Item) => void) | null;
  // Counts what somebody sent here; sending goes to the end, wherever one has read.
  sent: number;
  // What stands below the last message: questions, errors, what runs.
  children: ReactNode;
  // Shown instead of messages while there are none.
  empty: ReactNode;
}

// The messages of a thread. Only those in view are in the page; the end stays in view while somebody reads there.
export function Conversation({ items, streaming, onEdit, onAgain, sent, children, empty }: Props) {
  const scroller = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const [isAtEnd, setAtEnd] = useState(true);
  const follows = useRef(true);
  const leftAt = useRef(-LEAVES_FOR_MS);

  const virtual = useVirtualizer({
    count: items.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => GUESS_PX,
    overscan: 6,
    getItemKey: (index) => items[index]?.message.id ?? index,
  });

  const toEnd = () => {
    follows.current = true;
    leftAt.current = -LEAVES_FOR_MS;
    setAtEnd(true);
    scroller.current?.scrollTo({ top: scroller.current.scrollHeight });
  };

  // biome-ignore lint/correctness/useExhaustiveDependencies: each sending is what moves the view
  useEffect(() => toEnd(), [sent]);
  // Whatever grows, a message or a question below it, moves the end.
  useEffect(() => {
    const [outer, inner] = [scroller.current, content.current];
    if (!outer || !inner) return;
    const observer = new ResizeObserver(() => {
      if (follows.current) outer.scrollTop = outer.scrollHeight;
      else setAtEnd(isNearEnd(outer));
    });

    observer.observe(inner);
    observer.observe(outer);
    return () => observer.disconnect();
  }, []);

  const onScroll = () => {
    const element = scroller.current;
    if (!element) return;
    const isEnd = isNearEnd(element);
    if (isEnd && performance.now() - leftAt.current > LEAVES_FOR_MS) follows.current = true;
    setAtEnd(isEnd);
  };

  // The view also moves when rows above it are measured; only somebody who scrolls up stops following, and at once.
  const leave = () => {
    follows.current = false;
    leftAt.current = performance.now();
  };

  const onKeyDown = (event: KeyboardEvent<HTMLElement>) => {
    if (event.target !== event.currentTarget) return;
    if (UP_KEYS.has(event.key)) leave();
    if (event.key !== "Home" && event.key !== "End") return;

    // A scroll that glides over a thousand rows would be cut off where they are measured.
    event.preventDefault();
    if (event.key === "End") toEnd();
    else event.currentTarget.scrollTo({ top: 0 });
  };

  return (
    <div className="conversation">
      <div
        className="conversation-scroll"
        ref={scroller}
        onScroll={onScroll}
        onWheel={(event) => event.deltaY < 0 && leave()}
        onTouchMove={leave}
        // The scroll bar belongs to the element itself.
        onPointerDown={(event) => event.target === event.currentTarget && leave()}
        onKeyDown={onKeyDown}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: people scroll through a conversation with the keyboard
        tabIndex={0}
        role="log"
        aria-label="Messages"
      >
        <div className="conversation-content" ref={content}>
          {items.length === 0 && empty}
          <div className="list-space" style={{ height: virtual.getTotalSize() }}>
            {virtual.getVirtualItems().map((row) => {
              const item = items[row.index];
              if (!item) return null;

              return (
                <div
                  key={row.key}
                  ref={virtual.measureElement}
                  data-index={row.index}
                  className="conversation-row"
                  style={{ transform: `translateY(${row.start}px)` }}
                >
                  <MessageCard
                    item={item}
                    isStreaming={item.message.id === streaming}
                    onEdit={onEdit}
                    onAgain={onAgain}
                  />
                </div>
              );
            })}
          </div>
          {children}
        </div>
      </div>
      {!isAtEnd && (
        <button type="button" className="button to-end" onClick={toEnd}>
          <Icon name="down" /> Latest
        </button>
      )}
    </div>
  );
}

function isNearEnd(element: HTMLElement): boolean {
  return element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_END_PX;
}
