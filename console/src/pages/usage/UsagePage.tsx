import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useMemo } from "react";
import { address } from "../../api/client";
import { useApi } from "../../api/queries";
import { useMay, useSession } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { compact, cost, count } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { MomentFilters } from "../../ui/MomentInput";
import { Problem } from "../../ui/Problem";
import { getPeriod, parseRange, RangeSelect, withMoments } from "../../ui/Range";
import { Table } from "../../ui/Table";
import { Limits } from "./Limits";
import { GROUPS, type Group, getTotals, sumUp, type Total } from "./totals";

const usageRoute = getRouteApi("/usage");

const RANGES = ["24h", "7d", "30d", "90d", "month"] as const;

export function UsagePage() {
  const search = usageRoute.useSearch();
  const navigate = useNavigate();
  const { workspace, workspaces } = useSession();

  const group: Group = search.by !== undefined && search.by in GROUPS ? (search.by as Group) : "project";
  const range = parseRange(search.range, "month");
  const { start, end } = withMoments(getPeriod(range), search.since, search.until);

  // By workspace all that this person may read are compared; everything else is about the one that is shown.
  const ids = group === "workspace" || workspace === null ? workspaces.map((each) => each.id) : [workspace.id];
  const query = {
    start_time: start,
    end_time: end,
    workspace_ids: ids,
    group_by: group === "day" ? "workspace" : group,
  } as const;

  const mayRead = useMay("organization:read");
  const costs = useApi("GET /orgs/current/billing/costs", { query }, { keep: true, everyMs: 60_000, enabled: mayRead });
  const totals = useMemo(() => getTotals(costs.data?.usage ?? [], group), [costs.data, group]);

  const sum = sumUp(totals);
  const isRefused = !mayRead || (costs.error !== null && !costs.data);
  const show = (changes: Partial<Record<"by" | "range" | "since" | "until", string | undefined>>) =>
    void navigate({ to: "/usage", search: (old) => ({ ...old, ...changes }), replace: true });

  return (
    <div className="page">
      <div className="head">
        <h1>Usage</h1>
        <div className="row">
          {!isRefused && (
            <a className="button" href={address("/orgs/current/billing/costs/export", {}, query)} download>
              <Icon name="download" /> CSV
            </a>
          )}
          <Link to="/prices" className="button">
            Prices
          </Link>
        </div>
      </div>
      {!isRefused && (
        <dl className="figures four">
          <Figure title="Traces" value={group === "model" ? "–" : count(sum.traces)} />
          <Figure title="Runs" value={count(sum.runs)} note={`${count(sum.failed)} failed`} />
          <Figure title="Tokens" value={compact(sum.tokens)} />
          <Figure
            title="Cost"
            value={cost(sum.cost)}
            note={sum.unpriced > 0 ? `${count(sum.unpriced)} runs without a price` : ""}
          />
        </dl>
      )}
      <section className="card" aria-labelledby="by">
        <div className="card-head">
          <h2 id="by">By {GROUPS[group].toLowerCase()}</h2>
          <div className="filters">
            <RangeSelect
              value={range}
              names={RANGES}
              onChange={(name) => show({ range: name, since: undefined, until: undefined })}
            />
            <MomentFilters since={search.since} until={search.until} onChange={show} />
            <select aria-label="By" value={group} onChange={(event) => show({ by: event.target.value })}>
              {Object.entries(GROUPS).map(([name, title]) => (
                <option key={name} value={name}>
                  {title}
                </option>
              ))}
            </select>
          </div>
        </div>
        {costs.error && !costs.data && <Problem error={costs.error} retry={() => void costs.refetch()} />}
        {!mayRead && (
          <Empty title="You may not read usage">
            It is for members of the organization. A key for it needs the permission <code>organization:read</code>.
          </Empty>
        )}
        {costs.data && totals.length === 0 && (
          <Empty title="Nothing was used in this period" command="portside usage --days 30">
            Usage appears when traces arrive: deploy an agent, or point LANGSMITH_ENDPOINT of a program at this
            platform.
          </Empty>
        )}
        {totals.length > 0 && <Totals rows={totals} sum={sum} group={group} />}
      </section>
      <Limits />
    </div>
  );
}

function Figure({ title, value, note }: { title: string; value: string; note?: string }) {
  return (
    <div className="figure">
      <dt>{title}</dt>
      <dd>
        {value}
        {note && <p title={note}>{note}</p>}
      </dd>
    </div>
  );
}

function Totals({ rows, sum, group }: { rows: Total[]; sum: Total; group: Group }) {
  return (
    <Table
      label={`Usage by ${GROUPS[group].toLowerCase()}`}
      rows={rows}
      getKey={(each) => each.name}
      columns={[
        { title: GROUPS[group], show: (each) => each.name, sum: "All" },
        ...(group === "model"
          ? []
          : [
              {
                title: "Traces",
                show: (each: Total) => count(each.traces),
                isNumber: true,
                sum: count(sum.traces),
              },
            ]),
        {
          title: "Runs",
          show: (each) => count(each.runs),
          isNumber: true,
          isExtra: true,
          sum: count(sum.runs),
        },
        { title: "Tokens", show: (each) => compact(each.tokens), isNumber: true, sum: compact(sum.tokens) },
        {
          title: "Cost",
          show: (each) => cost(each.cost),
          isNumber: true,
          sum: cost(sum.cost),
        },
        {
          title: "No price",
          show: (each) => (each.unpriced ? count(each.unpriced) : ""),
          isNumber: true,
          isExtra: true,
          sum: sum.unpriced ? count(sum.unpriced) : "",
        },
      ]}
    />
  );
}
