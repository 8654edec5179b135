import type { Run, RunCreate } from "../../api/agentServer";
import { isBranch } from "../../ui/Json";

const KEPT = ["input", "command", "context", "interrupt_before", "interrupt_after", "webhook"] as const;

/** The request that repeats a run: the same assistant, input and context. */
export function toRetry(run: Run): RunCreate {
  const kwargs = Object.fromEntries(
    KEPT.map((name) => [name, run.kwargs[name]] as const).filter(([, value]) => value !== undefined && value !== null),
  );
  const config = isBranch(run.kwargs.config) ? (run.kwargs.config as Record<string, unknown>) : {};
  const limit =
    typeof config.recursion_limit === "number" ? { config: { recursion_limit: config.recursion_limit } } : {};

  return { assistant_id: run.assistant_id, multitask_strategy: "enqueue", ...kwargs, ...limit };
}
