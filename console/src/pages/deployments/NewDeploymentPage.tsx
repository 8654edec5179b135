import { Link, useNavigate } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import type { Integration } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { Field, SelectField, TextField } from "../../ui/Field";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";
import { SecretFields } from "../../ui/Secrets";
import { type DeploymentDraft, getFieldErrors, getSecretErrors, isShownAtFields, START, toBody } from "./draft";

export function NewDeploymentPage() {
  const navigate = useNavigate();
  const mayCreate = useMay("deployments:create");
  const [draft, setDraft] = useState(START);
  const integrations = useApi("GET /v1/integrations/git_hosting/install", {}, { enabled: mayCreate }).data ?? [];

  const create = useChange("POST /v2/deployments", (deployment) => {
    const revision = deployment.latest_revision_id;
    if (revision === null) {
      void navigate({ to: "/deployments/$deploymentId", params: { deploymentId: deployment.id } });
    } else {
      void navigate({
        to: "/deployments/$deploymentId/revisions/$revisionId",
        params: { deploymentId: deployment.id, revisionId: revision },
        search: { log: "build" },
      });
    }
  });

  const errors = getFieldErrors(create.error);
  const set = (changes: Partial<DeploymentDraft>) => setDraft((old) => ({ ...old, ...changes }));

  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate({ body: toBody(draft, integrations) });
  };

  if (!mayCreate) {
    return (
      <Empty title="You may not create deployments">
        An admin of the workspace can give you the role Editor. Until then the deployments of others are{" "}
        <Link to="/deployments" className="text">
          here
        </Link>
        .
      </Empty>
    );
  }

  return (
    <form className="page form" onSubmit={submit} noValidate>
      <h1>New deployment</h1>
      <fieldset className="choice">
        <legend className="hidden">Source</legend>
        <label>
          <input
            type="radio"
            name="source"
            checked={draft.source === "git_hosting"}
            onChange={() => set({ source: "git_hosting" })}
          />
          <span>
            <strong>Git repository</strong>
            <span className="soft">built here, again on each push if you like</span>
          </span>
          <Icon name="git" />
        </label>
        <label>
          <input
            type="radio"
            name="source"
            checked={draft.source === "external_image"}
            onChange={() => set({ source: "external_image" })}
          />
          <span>
            <strong>Image</strong>
            <span className="soft">of any registry, runs as it is</span>
          </span>
          <Icon name="image" />
        </label>
      </fieldset>
      <TextField
        label="Name"
        error={errors.name}
        hint="Lower-case letters, digits and hyphens. It becomes part of the address."
        isRequired
        autoFocus
        placeholder="my-agent"
        value={draft.name}
        onChange={(text) => set({ name: text })}
      />
      {draft.source === "git_hosting" ? (
        <GitFields draft={draft} set={set} errors={errors} integrations={integrations} />
      ) : (
        <ImageFields draft={draft} set={set} errors={errors} />
      )}
      <section aria-labelledby="secrets" className="fields">
        <div>
          <h2 id="secrets">Secrets</h2>
          <p className="soft">
            Environment variables of the agent, such as API keys. They are encrypted; nobody can read them here.
          </p>
        </div>
        <SecretFields
          drafts={draft.secrets}
          onChange={(secrets) => set({ secrets })}
          errors={getSecretErrors(create.error)}
        />
      </section>
      {create.error && !isShownAtFields(create.error) && <Problem error={create.error} />}
      {create.error && isShownAtFields(create.error) && (
        <p className="field error" role="alert">
          Some fields above need another value.
        </p>
      )}
      <div className="row">
        <button type="submit" className="button main" disabled={create.isPending}>
          {create.isPending ? "Creating…" : "Create and deploy"}
        </button>
        <Link to="/deployments" className="button">
          Cancel
        </Link>
      </div>
    </form>
  );
}

interface PartProps {
  draft: DeploymentDraft;
  set: (changes: Partial<DeploymentDraft>) => void;
  errors: Record<string, string>;
}

function GitFields({ draft, set, errors, integrations }: PartProps & { integrations: Integration[] }) {
  const [first] = integrations;

  return (
    <>
      <TextField
        label="Repository"
        error={errors["source_config.repo_url"]}
        hint="The address that git clone takes, https or ssh."
        isRequired
        inputMode="url"
        placeholder="https://github.com/you/your-agent"
        value={draft.repo_url}
        onChange={(text) => set({ repo_url: text })}
      />
      <div className="fields two">
        <TextField
          label="Branch, tag or commit"
          error={errors["source_revision_config.repo_ref"]}
          hint="Empty means the default branch."
          placeholder="main"
          value={draft.repo_ref}
          onChange={(text) => set({ repo_ref: text })}
        />
        <TextField
          label="Configuration file"
          error={errors["source_revision_config.graph_config_path"]}
          hint="Its path in the repository."
          isRequired
          value={draft.graph_config_path}
          onChange={(text) => set({ graph_config_path: text })}
        />
        <Field label="Account at the git host" error={errors["source_config.integration_id"]}>
          {(attributes) => (
            <select
              {...attributes}
              value={draft.integration_id || (first?.id ?? "")}
              onChange={(event) => set({ integration_id: event.target.value })}
            >
              {integrations.length === 0 && <option value="">none</option>}
              {integrations.map((each) => (
                <option key={each.id} value={each.id}>
                  {each.name} ({each.kind})
                </option>
              ))}
            </select>
          )}
        </Field>
        <SelectField
          label="Size"
          error={errors["source_config.deployment_type"]}
          value={draft.deployment_type}
          onChange={(value) => set({ deployment_type: value })}
          options={[
            ["dev", "Development: 1 CPU, 1024 MB, one replica"],
            ["prod", "Production: 2 CPU, 2048 MB, 1 to 10 replicas"],
          ]}
        />
      </div>
      <label className="check">
        <input
          type="checkbox"
          checked={draft.build_on_push}
          onChange={(event) => set({ build_on_push: event.target.checked })}
        />
        Deploy each push to the branch
      </label>
    </>
  );
}

function ImageFields({ draft, set, errors }: PartProps) {
  return (
    <>
      <TextField
        label="Image"
        error={errors["source_revision_config.image_uri"]}
        hint="With a tag or a digest."
        isRequired
        placeholder="registry.example.com/team/agent:1.0"
        value={draft.image_uri}
        onChange={(text) => set({ image_uri: text })}
      />
      <div className="fields two">
        {(["min_scale", "max_scale"] as const).map((name) => (
          <TextField
            key={name}
            label={name === "min_scale" ? "Replicas, at least" : "Replicas, at most"}
            error={errors[`source_config.resource_spec.${name}`]}
            inputMode="numeric"
            placeholder="1"
            value={draft[name]}
            onChange={(text) => set({ [name]: text })}
          />
        ))}
      </div>
    </>
  );
}
