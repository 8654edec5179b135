import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { type ReactNode, useState } from "react";
import type { Deployment, DeploymentPatch } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Confirm } from "../../ui/Confirm";
import { TextField } from "../../ui/Field";
import { Form, FormButtons } from "../../ui/Form";
import { parseNumber } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { emptySecret, lacksName, type SecretDraft, SecretFields, toSecrets } from "../../ui/Secrets";
import { SourceForm } from "./SourceForm";
import { useDeployment } from "./useDeployment";

const deploymentRoute = getRouteApi("/deployments/$deploymentId");

// Sources that Portside builds itself. A deployment of an image keeps no older revisions for its waiting threads.
const BUILT = new Set<Deployment["source"]>(["git_hosting", "github", "internal_source"]);

export function SettingsTab() {
  const { deploymentId } = deploymentRoute.useParams();
  const deployment = useDeployment(deploymentId).data;
  const mayUpdate = useMay("deployments:update");
  const mayDelete = useMay("deployments:delete");

  if (!deployment) return null;

  return (
    <div className="fields settings">
      <SourceForm deployment={deployment} mayUpdate={mayUpdate} />
      <Secrets deployment={deployment} mayUpdate={mayUpdate} />
      <Scale deploymentId={deploymentId} mayUpdate={mayUpdate} />
      <Sleep deployment={deployment} mayUpdate={mayUpdate} />
      {BUILT.has(deployment.source) && <PinnedThreads deployment={deployment} mayUpdate={mayUpdate} />}
      {mayDelete && <Delete deployment={deployment} />}
    </div>
  );
}

function Secrets({ deployment, mayUpdate }: { deployment: Deployment; mayUpdate: boolean }) {
  const [drafts, setDrafts] = useState<SecretDraft[]>([]);
  const [removals, setRemovals] = useState<string[]>([]);
  const change = useChange("PATCH /v2/deployments/{deployment_id}", () => {
    setDrafts([]);
    setRemovals([]);
  });

  const set = toSecrets(drafts);

  const save = () =>
    change.mutate({ path: { deployment_id: deployment.id }, body: { secret_changes: { set, unset: removals } } });

  return (
    <section className="card" aria-labelledby="secrets">
      <h2 id="secrets">Secrets</h2>
      <Form className="card-body fields" change={change} onSubmit={save}>
        <p className="soft">
          {deployment.secrets.length
            ? "Values are encrypted and cannot be read here."
            : "This deployment has no secrets."}
          {mayUpdate && " A change makes a new revision."}
        </p>
        <ul className="fields names">
          {deployment.secrets.map(({ name }) => (
            <li key={name} className="row spread">
              <code className={removals.includes(name) ? "gone" : ""}>{name}</code>
              {mayUpdate && (
                <span className="row">
                  <button
                    type="button"
                    className="link"
                    onClick={() => setDrafts([...drafts, { ...emptySecret(), name }])}
                  >
                    Replace
                  </button>
                  <button
                    type="button"
                    className="link"
                    aria-label={removals.includes(name) ? `Keep ${name}` : `Remove ${name}`}
                    onClick={() =>
                      setRemovals(
                        removals.includes(name) ? removals.filter((each) => each !== name) : [...removals, name],
                      )
                    }
                  >
                    {removals.includes(name) ? "Keep" : "Remove"}
                  </button>
                </span>
              )}
            </li>
          ))}
        </ul>
        {mayUpdate && <SecretFields drafts={drafts} onChange={setDrafts} />}
        {mayUpdate && (set.length > 0 || removals.length > 0) && (
          <FormButtons action="Save and deploy" isDisabled={lacksName(drafts)} />
        )}
      </Form>
    </section>
  );
}

function Scale({ deploymentId, mayUpdate }: { deploymentId: string; mayUpdate: boolean }) {
  const path = { deployment_id: deploymentId };
  const scale = useApi("GET /v2/deployments/{deployment_id}/scale", { path }).data;
  const [draft, setDraft] = useState<{ min?: string; max?: string }>({});
  const change = useChange("PUT /v2/deployments/{deployment_id}/scale", () => setDraft({}));

  if (!scale) return null;

  const min = draft.min ?? scale.min_scale?.toString() ?? "";
  const max = draft.max ?? scale.max_scale?.toString() ?? "";

  const save = () =>
    change.mutate({ path, body: { ...scale, min_scale: parseNumber(min), max_scale: parseNumber(max) } });

  return (
    <section className="card" aria-labelledby="scale">
      <h2 id="scale">Replicas</h2>
      <Form className="card-body fields" change={change} onSubmit={save}>
        <p className="soft">
          Limits apply at once, without a new revision. Empty leaves a limit to the size of the deployment.
        </p>
        <div className="fields two">
          <TextField
            label="At least"
            name="min_scale"
            inputMode="numeric"
            value={min}
            readOnly={!mayUpdate}
            onChange={(text) => setDraft({ ...draft, min: text })}
          />
          <TextField
            label="At most"
            name="max_scale"
            inputMode="numeric"
            value={max}
            readOnly={!mayUpdate}
            onChange={(text) => setDraft({ ...draft, max: text })}
          />
        </div>
        {mayUpdate && (draft.min !== undefined || draft.max !== undefined) && <FormButtons action="Save" />}
      </Form>
    </section>
  );
}

// The API has seconds; the page shows minutes, the unit in which people think of idle times.
function Sleep({ deployment, mayUpdate }: { deployment: Deployment; mayUpdate: boolean }) {
  return (
    <NumberSetting
      title="Sleep"
      label="Minutes without a request and a run"
      name="sleep_after_s"
      stored={deployment.sleep_after_s ? String(deployment.sleep_after_s / 60) : ""}
      toBody={(minutes) => ({ sleep_after_s: Number.isFinite(minutes) ? Math.round(60 * minutes) : minutes })}
      deployment={deployment}
      mayUpdate={mayUpdate}
    >
      An agent that nobody uses can sleep: it then needs neither memory nor CPU. The next request, run or cron wakes it,
      which takes a second or more. Empty is never.
    </NumberSetting>
  );
}

function PinnedThreads({ deployment, mayUpdate }: { deployment: Deployment; mayUpdate: boolean }) {
  return (
    <NumberSetting
      title="Threads that wait"
      label="Hours"
      name="pin_threads"
      stored={deployment.pin_threads ? String(deployment.pin_threads) : ""}
      toBody={(hours) => ({ pin_threads: hours })}
      deployment={deployment}
      mayUpdate={mayUpdate}
    >
      For how many hours threads that are interrupted or have runs go on with their revision after a newer one is
      deployed. Empty is not at all. A change applies at once, without a new revision.
    </NumberSetting>
  );
}

type NumberSettingProps = {
  title: string;
  label: string;
  name: "pin_threads" | "sleep_after_s";
  stored: string;
  toBody: (value: number) => DeploymentPatch;
  deployment: Deployment;
  mayUpdate: boolean;
  children: ReactNode;
};

// A number of a deployment that applies without a new revision; empty is 0.
function NumberSetting({ title, label, name, stored, toBody, deployment, mayUpdate, children }: NumberSettingProps) {
  const [draft, setDraft] = useState<string>();
  const change = useChange("PATCH /v2/deployments/{deployment_id}", () => setDraft(undefined));

  const save = () =>
    change.mutate({ path: { deployment_id: deployment.id }, body: toBody(parseNumber(draft ?? "") ?? 0) });

  return (
    <section className="card" aria-labelledby={name}>
      <h2 id={name}>{title}</h2>
      <Form className="card-body fields" change={change} onSubmit={save}>
        <p className="soft">{children}</p>
        <TextField
          label={label}
          name={name}
          inputMode="decimal"
          value={draft ?? stored}
          readOnly={!mayUpdate}
          onChange={setDraft}
        />
        {mayUpdate && draft !== undefined && <FormButtons action="Save" />}
      </Form>
    </section>
  );
}

function Delete({ deployment }: { deployment: Deployment }) {
  const [isAsking, setAsking] = useState(false);
  const [isWithTraces, setWithTraces] = useState(false);
  const navigate = useNavigate();
  const remove = useChange("DELETE /v2/deployments/{deployment_id}", () => void navigate({ to: "/deployments" }));

  return (
    <section className="card" aria-labelledby="delete">
      <h2 id="delete">Delete</h2>
      <div className="card-body row spread">
        <p className="soft">Stops the agent and deletes its database with all threads. This cannot be undone.</p>
        <button
          type="button"
          className="button danger"
          disabled={deployment.status === "AWAITING_DELETE"}
          onClick={() => setAsking(true)}
        >
          <Icon name="trash" />
          Delete this deployment
        </button>
      </div>
      {isAsking && (
        <Confirm
          title={`Delete ${deployment.name}?`}
          action="Delete for good"
          name={deployment.name}
          change={remove}
          onConfirm={() =>
            remove.mutate({ path: { deployment_id: deployment.id }, query: { delete_tracing_project: isWithTraces } })
          }
          onClose={() => setAsking(false)}
        >
          <p>Its processes, its database with all threads and its secrets are deleted.</p>
          <label className="check">
            <input type="checkbox" checked={isWithTraces} onChange={(event) => setWithTraces(event.target.checked)} />
            Delete its traces too
          </label>
        </Confirm>
      )}
    </section>
  );
}
