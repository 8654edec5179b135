import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { callAgent } from "../../api/agent";
import { useAgentChange } from "../../api/agentQueries";
import type { FoundRun } from "../../api/agentServer";
import type { ApiError } from "../../api/client";
import { Confirm } from "../../ui/Confirm";
import { Icon } from "../../ui/Icon";

interface Props {
  deploymentId: string;
  // The runs that somebody marked, of any threads.
  marked: FoundRun[];
  onDone: () => void;
}

// Cancels the marked runs, or all that wait, or all that wait or run. Asks first.
export function CancelRuns({ deploymentId, marked, onDone }: Props) {
  const [scope, setScope] = useState<"marked" | "pending" | "all" | null>(null);

  const finish = () => {
    setScope(null);
    onDone();
  };

  const cancelAll = useAgentChange(deploymentId, "POST /runs/cancel", finish);
  const cancelMarked = useCancelMarked(deploymentId, finish);

  const text = {
    marked: `${marked.length} marked ${marked.length === 1 ? "run" : "runs"}`,
    pending: "all waiting runs",
    all: "all waiting and running runs",
  };

  return (
    <>
      {marked.length > 0 && (
        <button type="button" className="button" onClick={() => setScope("marked")}>
          <Icon name="stop" />
          Cancel {marked.length} marked
        </button>
      )}
      <button type="button" className="button" onClick={() => setScope("pending")}>
        Cancel all waiting
      </button>
      <button type="button" className="button" onClick={() => setScope("all")}>
        Cancel all
      </button>
      {scope && (
        <Confirm
          title={`Cancel ${text[scope]}?`}
          action="Cancel the runs"
          cancel="Keep"
          change={scope === "marked" ? cancelMarked : cancelAll}
          onConfirm={() =>
            scope === "marked" ? cancelMarked.mutate(marked) : cancelAll.mutate({ body: { status: scope } })
          }
          onClose={() => setScope(null)}
        >
          <p>
            They end as interrupted, of all assistants and threads that you may change. Their threads keep what was done
            so far.
          </p>
        </Confirm>
      )}
    </>
  );
}

// One request cancels runs of one thread.
function useCancelMarked(deploymentId: string, onDone: () => void) {
  const cache = useQueryClient();

  return useMutation<void, ApiError, FoundRun[]>({
    mutationFn: async (runs) => {
      for (const [thread, ids] of byThread(runs)) {
        await callAgent(deploymentId, "POST /runs/cancel", { body: { thread_id: thread, run_ids: ids } });
      }
    },
    onSuccess: onDone,
    onSettled: () => cache.invalidateQueries({ predicate: (query) => query.queryKey.includes(deploymentId) }),
  });
}

function byThread(runs: FoundRun[]): Map<string, string[]> {
  const threads = new Map<string, string[]>();
  for (const { thread_id, run_id } of runs) threads.set(thread_id, [...(threads.get(thread_id) ?? []), run_id]);
  return threads;
}
