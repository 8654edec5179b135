import type { RunState } from "./runs";

const SHAPES: Record<RunState, [string, string, string]> = {
  SUCCESS: ["good", "Succeeded", "M2.500 6.200 5 8.700l4.500-5"],
  ERROR: ["bad", "Failed", "M6 1.400v5.800M6 10v.6"],
  INTERRUPTED: ["wait", "Interrupted", "M4.600 2.500v7M7.400 2.500v7"],
  PENDING: ["busy", "Running", "M6 1.200A4.800 4.800 0 1 1 1.200 6"],
};

// The state of a run as a shape, with its word for those who do not see it.
export function RunMark({ status }: { status: RunState }) {
  const [tone, word, path] = SHAPES[status] ?? SHAPES.PENDING;

  return (
    <span className={`status mark ${tone}`} title={word}>
      <svg viewBox="0 0 12 12" aria-hidden="true">
        <path d={path} />
      </svg>
      <span className="hidden">{word}</span>
    </span>
  );
}
