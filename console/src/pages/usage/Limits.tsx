import { useApi } from "../../api/queries";
import { useMay } from "../../shell/session";
import { count } from "../../ui/format";
import { Problem } from "../../ui/Problem";
import { Table } from "../../ui/Table";

const MONTHLY: Record<string, string> = {
  monthly_traces: "Traces this month",
  monthly_longlived_traces: "Long-lived traces this month",
};

// The limits in force, and what is left of each.
export function Limits() {
  const limits = useApi("GET /limits", {}, { everyMs: 10_000, enabled: useMay("workspaces:read") });
  if (limits.error && !limits.data) return <Problem error={limits.error} retry={() => void limits.refetch()} />;
  if (limits.data === undefined) return null;
  const { monthly, rates } = limits.data;

  return (
    <section className="card" aria-labelledby="limits">
      <div className="card-head">
        <h2 id="limits">Limits and what is left</h2>
        <span className="soft small">Months are in UTC; rate limits are those of this session</span>
      </div>
      <Table
        label="Monthly limits"
        rows={monthly}
        getKey={(each) => each.limit_type}
        columns={[
          { title: "Of this workspace", show: (each) => MONTHLY[each.limit_type] ?? each.limit_type },
          { title: "Used", show: (each) => count(each.used), isNumber: true },
          {
            title: "Limit",
            show: (each) => (each.limit_value === null ? <span className="soft">none</span> : count(each.limit_value)),
            isNumber: true,
          },
          {
            title: "Left",
            show: (each) =>
              each.remaining === null || each.limit_value === null ? (
                <span className="soft">no limit</span>
              ) : (
                <Meter left={each.remaining} of={each.limit_value} what={MONTHLY[each.limit_type] ?? each.limit_type} />
              ),
            isNumber: true,
          },
        ]}
      />
      {rates.length > 0 && (
        <Table
          label="Rate limits"
          rows={rates}
          getKey={(each) => `${each.match} ${each.category}`}
          columns={[
            {
              title: "Requests",
              show: (each) => (
                <span title={each.match}>
                  {each.category} <code className="soft">{each.match}</code>
                </span>
              ),
            },
            { title: "Limit", show: (each) => `${count(each.count)} in ${each.seconds} s`, isNumber: true },
            {
              title: "Window ends",
              show: (each) =>
                each.seconds_left === null ? <span className="soft">–</span> : `in ${each.seconds_left} s`,
              isNumber: true,
              isExtra: true,
            },
            {
              title: "Left",
              show: (each) => <Meter left={each.remaining} of={each.count} what={`${each.category} ${each.match}`} />,
              isNumber: true,
            },
          ]}
        />
      )}
    </section>
  );
}

function Meter({ left, of, what }: { left: number; of: number; what: string }) {
  return (
    <span className="meter">
      <meter aria-label={`${what}, left`} min={0} max={Math.max(of, 1)} low={of / 5} value={left} />
      <span>{count(left)}</span>
    </span>
  );
}
