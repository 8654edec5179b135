import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef } from "react";
import { callAgent } from "../../api/agent";
import type { ThreadState as State } from "../../api/agentServer";
import { usePages } from "../../api/pages";
import { useKey } from "../../shell/keys";
import { Problem } from "../../ui/Problem";
import { Ago } from "../../ui/Time";

const PAGE = 100;
const ROW_PX = 44;
// Everything but the values, which may be large.
const SELECT = ["checkpoint", "parent_checkpoint", "metadata", "next", "created_at", "interrupts"];

interface Props {
  deploymentId: string;
  threadId: string;
  selected: string | undefined;
  // When the thread changed; the history is read again then.
  changedAt: string | undefined;
  onSelect: (checkpoint: string) => void;
}

// The checkpoints of a thread, newest first. Those of another branch are set in.
export function Timeline({ deploymentId, threadId, selected, changedAt, onSelect }: Props) {
  const history = useHistory(deploymentId, threadId, changedAt);
  const states = history.rows;
  const trunk = useMemo(() => getTrunk(states), [states]);
  const scroller = useRef<HTMLDivElement>(null);

  const virtual = useVirtualizer({
    count: states.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_PX,
    overscan: 10,
    getItemKey: (index) => states[index]?.checkpoint?.checkpoint_id ?? index,
  });

  const items = virtual.getVirtualItems();
  const last = items.at(-1)?.index ?? 0;
  const { loadMore } = history;
  useEffect(() => {
    if (last >= states.length - 10) loadMore();
  }, [last, states.length, loadMore]);

  const current = selected ?? states[0]?.checkpoint?.checkpoint_id;

  const move = (step: number) => {
    const index = states.findIndex((each) => each.checkpoint?.checkpoint_id === current) + step;
    const id = states[index]?.checkpoint?.checkpoint_id;
    if (!id) return;
    onSelect(id);
    virtual.scrollToIndex(index);
  };

  useKey("j", () => move(1));
  useKey("k", () => move(-1));

  return (
    <section className="card timeline" aria-label="Checkpoints">
      <h2>
        Checkpoints <span className="soft small">newest first</span>
      </h2>
      {history.error && !history.isRead && <Problem error={history.error} retry={history.retry} />}
      {history.isRead && states.length === 0 && <p className="card-body soft">No run has changed this thread yet.</p>}
      <div className="timeline-body" ref={scroller}>
        <ol className="list-space" style={{ height: virtual.getTotalSize() }}>
          {items.map((item) => {
            const state = states[item.index];
            const id = state?.checkpoint?.checkpoint_id;
            if (!state || !id) return null;

            return (
              <li key={item.key} style={{ transform: `translateY(${item.start}px)` }}>
                <button
                  type="button"
                  className={trunk.has(id) ? "checkpoint" : "checkpoint branch"}
                  aria-current={id === current}
                  onClick={() => onSelect(id)}
                >
                  <span className="checkpoint-step">{getStep(state)}</span>
                  <span className="checkpoint-what">
                    {getTitle(state)}
                    <span className="soft small">
                      {" "}
                      {state.interrupts?.length ? "waits for a person" : trunk.has(id) ? "" : "another branch"}
                    </span>
                  </span>
                  <span className="soft small">{state.created_at && <Ago at={state.created_at} />}</span>
                </button>
              </li>
            );
          })}
        </ol>
      </div>
    </section>
  );
}

function useHistory(deploymentId: string, threadId: string, changedAt: string | undefined) {
  return usePages(
    {
      key: ["agent", deploymentId, "history", threadId, changedAt],
      first: null as string | null,
      read: async (before, signal) => {
        const options = { path: { thread_id: threadId }, body: { limit: PAGE, before, select: SELECT } };
        const rows = await callAgent(deploymentId, "POST /threads/{thread_id}/history", options, signal);
        return { rows, next: rows.length < PAGE ? null : (rows.at(-1)?.checkpoint?.checkpoint_id ?? null) };
      },
    },
    { keep: true },
  );
}

function getStep(state: State): string {
  const step = state.metadata?.step;
  return typeof step === "number" ? String(step) : "";
}

function getTitle(state: State): string {
  if (state.next?.length) return `before ${state.next.join(", ")}`;
  return state.metadata?.source === "update" ? "edited" : "end";
}

// The checkpoints that led to the newest one.
function getTrunk(states: State[]): Set<string> {
  const parents = new Map(
    states.map((each) => [each.checkpoint?.checkpoint_id, each.parent_checkpoint?.checkpoint_id] as const),
  );
  const trunk = new Set<string>();
  for (let id = states[0]?.checkpoint?.checkpoint_id; id && !trunk.has(id); id = parents.get(id)) trunk.add(id);

  return trunk;
}
