import { useAgentApi } from "../../api/agentQueries";
import { Problem } from "../../ui/Problem";
import { Ago } from "../../ui/Time";

interface Props {
  deploymentId: string;
  schedule: string;
  timezone: string | null;
  endTime?: string | null;
  // Times are read again when this changes: when one of them has passed.
  after?: string;
}

// The next five times of a schedule as the server computes them, in the zone of the schedule.
export function NextTimes({ deploymentId, schedule, timezone, endTime, after }: Props) {
  const preview = useAgentApi(
    deploymentId,
    "POST /runs/crons/preview",
    { body: { schedule, ...(timezone ? { timezone } : {}), ...(endTime ? { end_time: endTime } : {}) } },
    { keep: after !== undefined, everyMs: 60_000 },
  );

  if (!preview.data) return preview.error && preview.error.status !== 422 ? <Problem error={preview.error} /> : null;

  return (
    <ol className="times" aria-label="Next times">
      {preview.data.next_run_dates.map((each) => (
        <li key={each}>
          <span>
            {each.slice(0, 10)} {each.slice(11, 19)} <span className="soft">{each.slice(19)}</span>
          </span>
          <span className="soft">
            <Ago at={each} />
          </span>
        </li>
      ))}
    </ol>
  );
}
