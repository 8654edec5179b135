import { getRouteApi, Link } from "@tanstack/react-router";
import type { Alert } from "../../api/platform";
import { useApi } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { Problem } from "../../ui/Problem";
import { Status } from "../../ui/Status";
import { Table } from "../../ui/Table";
import { Tabs } from "../../ui/Tabs";
import { Ago } from "../../ui/Time";
import { ChannelsTab } from "./ChannelsTab";
import { RulesTab } from "./RulesTab";

const alertsRoute = getRouteApi("/alerts");

const TABS = [
  ["alerts", "Alerts"],
  ["channels", "Channels"],
  ["rules", "Rules"],
] as const;

const OF_DEPLOYMENTS = [
  "deployment_failed",
  "deployment_restarting",
  "deployment_degraded",
  "queue_waiting",
  "error_rate",
];

// The alerts that fire, the channels that their messages go to, and the rules with their thresholds.
export function AlertsPage() {
  const { tab } = alertsRoute.useSearch();
  const mayManage = useMay("organization:manage");

  const view = TABS.find(([name]) => name === tab)?.[0] ?? "alerts";

  return (
    <div className="page">
      <h1>Alerts</h1>
      {!mayManage && <Empty title="You may not see the alerts">Admins and operators of the organization may.</Empty>}
      {mayManage && (
        <>
          <Tabs
            label="Parts of the page"
            tabs={TABS}
            selected={view}
            search={(next, old) => ({ ...old, tab: next === "alerts" ? undefined : next })}
          />
          {view === "alerts" && <AlertsTab />}
          {view === "channels" && <ChannelsTab />}
          {view === "rules" && <RulesTab />}
        </>
      )}
    </div>
  );
}

function AlertsTab() {
  const alerts = useApi("GET /alerts", { query: { limit: 200 } }, { everyMs: 10_000 });
  const channels = useApi("GET /alerts/channels", {});
  const rules = useApi("GET /alerts/rules", {});

  if (alerts.error && !alerts.data) return <Problem error={alerts.error} retry={() => void alerts.refetch()} />;
  if (alerts.data === undefined) return null;
  const getUnit = (rule: string) => rules.data?.find((each) => each.name === rule)?.unit ?? "";

  return (
    <>
      {channels.data?.length === 0 && (
        <p className="notice">
          Alerts are only shown here:{" "}
          <Link to="/alerts" search={{ tab: "channels" }}>
            add a channel
          </Link>{" "}
          to get them as messages.
        </p>
      )}
      {alerts.data.length === 0 ? (
        <Empty title="No alerts" command="portside alerts rules">
          Nothing is wrong now, and nothing was in the last 90 days.
        </Empty>
      ) : (
        <section className="card" aria-label="Alerts">
          <Table
            label="Alerts"
            rows={alerts.data}
            getKey={(each) => each.id}
            isStacked
            columns={[
              { title: "About", show: (each) => <About of={each} /> },
              { title: "State", show: (each) => <State of={each} /> },
              { title: "Rule", show: (each) => <code>{each.rule}</code> },
              { title: "Value", show: (each) => formatValue(each.value, getUnit(each.rule)), isNumber: true },
              { title: "Detail", show: (each) => <span title={each.detail}>{each.detail}</span> },
              { title: "Since", show: (each) => <Ago at={each.fired_at} /> },
              { title: "Until", show: (each) => each.ended_at && <Ago at={each.ended_at} /> },
            ]}
          />
        </section>
      )}
    </>
  );
}

function About({ of: alert }: { of: Alert }) {
  if (!OF_DEPLOYMENTS.includes(alert.rule)) return alert.name;

  return (
    <Link to="/deployments/$deploymentId" params={{ deploymentId: alert.subject }}>
      {alert.name}
    </Link>
  );
}

// A condition without a unit only holds or not.
function formatValue(value: number, unit: string): string {
  return unit ? `${Math.round(value * 10) / 10}\u00a0${unit}` : "";
}

function State({ of: alert }: { of: Alert }) {
  if (alert.ended_at) return <Status tone="good" word="Ended" />;
  return alert.is_silenced ? <Status tone="wait" word="Silenced" /> : <Status tone="bad" word="Firing" />;
}
