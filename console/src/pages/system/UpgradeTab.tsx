import type { DeploymentServer, ServerRollout, UpgradeState } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Command } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { Problem } from "../../ui/Problem";
import { Status } from "../../ui/Status";
import { Table } from "../../ui/Table";
import { Ago } from "../../ui/Time";

const EVERY_MS = 2_000;

const STATES: Record<DeploymentServer["state"], ["good" | "busy" | "bad" | "idle" | "wait", string]> = {
  current: ["good", "This version"],
  behind: ["wait", "Earlier version"],
  replacing: ["busy", "Being replaced"],
  failed: ["bad", "The new server does not start"],
  own: ["idle", "With its build or image"],
  stopped: ["idle", "Nothing runs"],
  unknown: ["idle", "Not reported yet"],
};

// The versions of the platform and of its agents' servers, and how far the replacement of earlier ones is.
export function UpgradeTab() {
  const mayManage = useMay("organization:manage");
  const upgrade = useApi("GET /system/upgrade", {}, { enabled: mayManage, everyMs: EVERY_MS });
  const go = useChange("POST /system/upgrade/roll-forward", () => void upgrade.refetch());

  if (!mayManage) {
    return <Empty title="You may not see upgrades">Admins and operators of the organization may.</Empty>;
  }
  if (upgrade.error) return <Problem error={upgrade.error} retry={() => void upgrade.refetch()} />;
  if (!upgrade.data) return null;
  const { rollout, agents } = upgrade.data;
  const isHalted = rollout?.status === "halted";

  const isRunning = rollout?.status === "running";
  const failed = agents.find((each) => each.state === "failed");
  const waiting = agents.filter((each) => each.state === "behind" || each.state === "failed");

  return (
    <>
      <section className="card" aria-label="Upgrade">
        <h2>Upgrade</h2>
        <Facts of={upgrade.data} />
        {isHalted && <Halt of={rollout} failed={failed} />}
        <div className="card-body stack">
          {waiting.length > 0 && (
            <div className="row">
              <button
                type="button"
                className="button"
                disabled={go.isPending || isRunning}
                onClick={() => go.mutate({ body: {} })}
              >
                {isRunning ? "Agents are being replaced" : isHalted ? "Try again and go on" : "Roll agents forward"}
              </button>
              {isHalted && failed && (
                <button
                  type="button"
                  className="button"
                  disabled={go.isPending}
                  onClick={() => go.mutate({ body: { skip: [failed.id] } })}
                >
                  Leave {failed.name} and go on
                </button>
              )}
            </div>
          )}
          {go.error && <Problem error={go.error} />}
          <p className="soft small">
            To upgrade, install the new version on the platform's machine. Then this shows what will happen; without
            --check it does it, while agents serve.
          </p>
          <Command text="portside upgrade --check" />
        </div>
      </section>
      {agents.length === 0 ? (
        <Empty title="No agent serves">A deployment appears here once it was deployed.</Empty>
      ) : (
        <Servers agents={agents} />
      )}
    </>
  );
}

function Facts({ of: state }: { of: UpgradeState }) {
  const { rollout, last } = state;

  return (
    <dl className="card-body facts">
      <div>
        <dt>Platform</dt>
        <dd>
          <code>{state.version}</code>
        </dd>
      </div>
      <div>
        <dt>Running since</dt>
        <dd>
          <Ago at={state.started_at} />
        </dd>
      </div>
      <div>
        <dt>Agents</dt>
        <dd>
          <Rollout of={rollout} agents={state.agents} />
        </dd>
      </div>
      <div>
        <dt>After an upgrade</dt>
        <dd>{state.is_automatic ? "they follow by themselves" : "they wait (ROLL_FORWARD=on-request)"}</dd>
      </div>
      {last && (
        <div>
          <dt>Last upgrade</dt>
          <dd>
            <Ago at={last.at} /> from <code>{last.before ?? "a stopped platform"}</code>
          </dd>
        </div>
      )}
      {last && (
        <div>
          <dt>Backup before it</dt>
          <dd>{last.backup ? <code>{last.backup}</code> : <span className="soft">none was taken</span>}</dd>
        </div>
      )}
    </dl>
  );
}

function Rollout({ of: rollout, agents }: { of: ServerRollout | null; agents: DeploymentServer[] }) {
  if (rollout?.status === "halted") return <Status tone="bad" word="Halted" />;
  if (rollout?.status === "running") return <Status tone="busy" word="Being replaced" />;
  const behind = agents.filter((each) => each.state === "behind").length;
  return behind ? <Status tone="wait" word={`${behind} behind`} /> : <Status tone="good" word="None behind" />;
}

function Halt({ of: rollout, failed }: { of: ServerRollout; failed: DeploymentServer | undefined }) {
  return (
    <div className="card-body" role="alert">
      <p className="bad-text">
        The new server of {failed?.name ?? "an agent"} does not start. It keeps its earlier server, and so do the agents
        that wait.
      </p>
      <pre className="long-text">{rollout.reason}</pre>
    </div>
  );
}

function Servers({ agents }: { agents: DeploymentServer[] }) {
  return (
    <section className="card" aria-label="Servers of agents">
      <Table
        label="Servers of agents"
        rows={agents}
        getKey={(each) => each.id}
        isStacked
        columns={[
          { title: "Agent", show: (each) => each.name },
          { title: "Server", show: (each) => <code>{each.version ?? "–"}</code> },
          {
            title: "State",
            show: (each) => <Status tone={STATES[each.state][0]} word={STATES[each.state][1]} />,
          },
        ]}
      />
    </section>
  );
}
