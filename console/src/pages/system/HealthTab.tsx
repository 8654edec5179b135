import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import type { Deployment, DeploymentMetrics, Listener } from "../../api/platform";
import { useApi } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { Fact } from "../../ui/Fact";
import { bytes } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { DeploymentState, Status } from "../../ui/Status";
import { Table } from "../../ui/Table";
import { AgoOrNever } from "../../ui/Time";
import { getName } from "../deployments/deployment";

const EVERY_MS = 10_000;
// A listener polls at least once in half a minute; after several polls without it something is wrong.
const SILENT_AFTER_MS = 120_000;
const METHODS = { password: "password", "api-key": "API key", oidc: "OpenID Connect" };
const LOW_DISK = 0.1;

interface Health {
  ok: boolean;
  services: Record<string, boolean>;
  problems?: Record<string, string>;
}

export function HealthTab() {
  const health = useApi("GET /ok", {}, { everyMs: EVERY_MS });
  const info = useApi("GET /info", {});
  const system = useApi("GET /system", {}, { enabled: useMay("organization:manage"), everyMs: 60_000 }).data;
  const mayReadDeployments = useMay("deployments:read");

  const { ok, services, problems } = (health.data ?? { ok: true, services: {} }) as Health;

  return (
    <>
      {health.error && <Problem error={health.error} />}
      <section className="card" aria-label="Platform">
        <h2>Platform</h2>
        <dl className="card-body facts">
          <Fact title="State">
            <Status tone={ok ? "good" : "bad"} word={ok ? "Answers" : "A part is down"} />
          </Fact>
          {Object.entries(services).map(([name, isUp]) => (
            <Fact key={name} title={name === "postgres" ? "Database" : name}>
              <Status tone={isUp ? "good" : "bad"} word={isUp ? "Answers" : "Does not answer"} />
            </Fact>
          ))}
          <Fact title="Version">
            <code>{info.data?.portside_version ?? "…"}</code>
          </Fact>
          <Fact title="LangSmith API">
            <code>{info.data?.version ?? "…"}</code>
          </Fact>
          {system && (
            <>
              <Fact title="Proxy">
                <Front settings={Object.fromEntries(system.settings.map((each) => [each.name, each.value]))} />
              </Fact>
              <Fact title="Signing in">{system.sign_in_methods.map((each) => METHODS[each]).join(", ")}</Fact>
              <Fact title="Disk">
                <span title={system.disk.folder}>
                  {system.disk.free_bytes < LOW_DISK * system.disk.total_bytes && (
                    <>
                      <Status tone="bad" word="Nearly full" />{" "}
                    </>
                  )}
                  {bytes(system.disk.free_bytes)} free of {bytes(system.disk.total_bytes)}
                </span>
              </Fact>
            </>
          )}
        </dl>
        {problems && Object.keys(problems).length > 0 && (
          <ul className="card-body stack">
            {Object.entries(problems).map(([part, problem]) => (
              <li key={part} className="notice">
                <strong>{part}</strong>: {problem}
              </li>
            ))}
          </ul>
        )}
      </section>
      {mayReadDeployments && <Listeners />}
      {mayReadDeployments && <Agents />}
    </>
  );
}

function Front({ settings }: { settings: Record<string, unknown> }) {
  if (!settings.PORTSIDE_FRONT) return <span className="soft">off: agents answer at ports of their own</span>;
  const domain = settings.PORTSIDE_DOMAIN;
  if (!domain) return <>on, without a domain</>;

  return (
    <>
      {String(domain)} <span className="soft">· TLS {String(settings.PORTSIDE_TLS)}</span>
    </>
  );
}

function Listeners() {
  const query = useApi("GET /v2/listeners", { query: { limit: 100 } }, { everyMs: EVERY_MS });
  const listeners = query.data?.resources ?? [];

  return (
    <section className="card" aria-label="Listeners">
      <h2>Listeners</h2>
      {query.error && <Problem error={query.error} />}
      {query.data && listeners.length === 0 && (
        <Empty title="No listener" command="portside up">
          A listener builds and runs deployments on one machine or cluster. Without one nothing is deployed.
        </Empty>
      )}
      {listeners.length > 0 && (
        <Table
          label="Listeners"
          rows={listeners}
          getKey={(each) => each.id}
          isStacked
          columns={[
            { title: "Compute", show: (each) => <span title={each.id}>{each.compute_id}</span> },
            { title: "State", show: (each) => <ListenerState of={each} /> },
            { title: "Last contact", show: (each) => <AgoOrNever at={each.last_seen_at} /> },
            { title: "Version", show: (each) => <code>{each.version ?? "–"}</code> },
            {
              title: "Kind",
              show: (each) => (
                <>
                  {each.compute_type === "k8s" ? "Kubernetes" : "processes"}
                  {each.compute_config.k8s_namespaces?.length ? (
                    <span className="soft"> · {each.compute_config.k8s_namespaces.join(", ")}</span>
                  ) : null}
                </>
              ),
            },
          ]}
        />
      )}
    </section>
  );
}

// Each costs a request for its figures.
const SHOWN_AGENTS = 50;

function ListenerState({ of: listener }: { of: Listener }) {
  if (listener.last_seen_at === null) return <Status tone="idle" word="Not connected yet" />;
  const isSilent = Date.now() - new Date(listener.last_seen_at).getTime() > SILENT_AFTER_MS;
  return isSilent ? <Status tone="bad" word="Silent" /> : <Status tone="good" word="Connected" />;
}

function Agents() {
  const query = useApi("GET /v2/deployments", { query: { limit: SHOWN_AGENTS } }, { everyMs: EVERY_MS });
  const deployments = query.data?.resources ?? [];

  return (
    <section className="card" aria-label="Agents">
      <h2>Agents</h2>
      {query.error && <Problem error={query.error} />}
      {query.data && deployments.length === 0 && <p className="card-body soft">Nothing is deployed yet.</p>}
      {deployments.length > 0 && (
        <Table
          label="Agents"
          rows={deployments}
          getKey={(each) => each.id}
          isStacked
          columns={[
            {
              title: "Deployment",
              show: (each) => (
                <Link to="/deployments/$deploymentId" params={{ deploymentId: each.id }} className="name">
                  {getName(each)}
                </Link>
              ),
            },
            { title: "State", show: (each) => <DeploymentState of={each} title={each.status_message} /> },
            {
              title: "Agent server",
              show: (each) => (
                <Measured of={each} show={({ server_version: version }) => version && <code>{version}</code>} />
              ),
            },
            {
              title: "Replicas",
              show: (each) => <Measured of={each} show={({ replicas }) => replicas} />,
              isNumber: true,
            },
            {
              title: "Memory",
              show: (each) => (
                <Measured
                  of={each}
                  show={({ memory_mb: memory }) => (memory == null ? null : `${Math.round(memory)} MB`)}
                />
              ),
              isNumber: true,
            },
          ]}
        />
      )}
      {deployments.length === SHOWN_AGENTS && (
        <p className="card-body soft">
          The {SHOWN_AGENTS} newest; <Link to="/deployments">Deployments</Link> lists all.
        </p>
      )}
    </section>
  );
}

interface MeasuredProps {
  of: Deployment;
  show: (metrics: DeploymentMetrics) => ReactNode;
}

// What a deployment uses at the moment. All cells of a row share one request.
function Measured({ of: deployment, show }: MeasuredProps) {
  const metrics = useApi(
    "GET /v2/deployments/{deployment_id}/metrics",
    { path: { deployment_id: deployment.id } },
    { everyMs: EVERY_MS },
  ).data;

  return (metrics && show(metrics)) ?? "–";
}
