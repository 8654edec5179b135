// Where the code of a deployment comes from, and the parts of it that may change: what runs then is a new revision.

import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import type { Deployment, DeploymentPatch } from "../../api/platform";
import { useChange } from "../../api/queries";
import { TextField } from "../../ui/Field";
import { Form, FormButtons } from "../../ui/Form";

type Texts = { [N in TextName]?: string };
type TextName = "repo_ref" | "graph_config_path" | "image_uri" | "install_command" | "build_command";

const OF_REVISION = ["repo_ref", "graph_config_path", "image_uri"] as const;
const OF_BUILDS = ["install_command", "build_command"] as const;

const TITLES: Record<TextName, [string, string]> = {
  repo_ref: ["Branch, tag or commit", ""],
  graph_config_path: ["Configuration file", "Its path from the root of the code."],
  image_uri: ["Image", "With a tag or a digest."],
  install_command: ["Install command", "Instead of the usual one; from the next build on."],
  build_command: ["Build command", "Runs after the installation; from the next build on."],
};

export function SourceForm({ deployment, mayUpdate }: { deployment: Deployment; mayUpdate: boolean }) {
  const navigate = useNavigate();
  const [draft, setDraft] = useState<Texts & { build_on_push?: boolean }>({});
  const change = useChange("PATCH /v2/deployments/{deployment_id}", (after) => {
    setDraft({});
    const revisionId = after.latest_revision_id;
    if (!revisionId || revisionId === deployment.latest_revision_id) return;

    void navigate({
      to: "/deployments/$deploymentId/revisions/$revisionId",
      params: { deploymentId: after.id, revisionId },
      search: { log: "build" },
    });
  });

  const { source_config: config, source_revision_config: code } = deployment;
  const stored = { ...code, ...config };
  const isImage = code.image_uri !== null && code.image_uri !== undefined;

  const names: readonly TextName[] = isImage
    ? ["image_uri"]
    : config.repo_url
      ? ["repo_ref", "graph_config_path", ...OF_BUILDS]
      : ["graph_config_path", ...OF_BUILDS];

  const changes = names.filter((name) => draft[name] !== undefined && draft[name]?.trim() !== (stored[name] ?? ""));
  const isPushChanged = draft.build_on_push !== undefined && draft.build_on_push !== (config.build_on_push ?? false);
  const isRevision = changes.some((name) => (OF_REVISION as readonly string[]).includes(name));

  const save = () => {
    const pick = (from: readonly TextName[]) =>
      Object.fromEntries(changes.filter((name) => from.includes(name)).map((name) => [name, draft[name]?.trim()]));
    const body: DeploymentPatch = {
      source_config: { ...pick(OF_BUILDS), ...(isPushChanged ? { build_on_push: draft.build_on_push ?? false } : {}) },
    };
    if (isRevision) body.source_revision_config = pick(OF_REVISION);

    change.mutate({ path: { deployment_id: deployment.id }, body });
  };

  return (
    <section className="card" aria-labelledby="source">
      <h2 id="source">Source</h2>
      <Form className="card-body fields" change={change} onSubmit={save}>
        {config.repo_url && (
          <p className="soft">
            Repository <code>{config.repo_url}</code>. A deployment keeps it; for another one make a new deployment.
          </p>
        )}
        {!config.repo_url && !isImage && (
          <p className="soft">
            A folder that was uploaded. Upload it again with <code>portside deploy</code>.
          </p>
        )}
        <div className="fields two">
          {names.map((name) => (
            <TextField
              key={name}
              label={TITLES[name][0]}
              hint={TITLES[name][1]}
              name={name}
              value={draft[name] ?? stored[name] ?? ""}
              readOnly={!mayUpdate}
              onChange={(text) => setDraft({ ...draft, [name]: text })}
            />
          ))}
        </div>
        {config.repo_url && (
          <label className="check">
            <input
              type="checkbox"
              checked={draft.build_on_push ?? config.build_on_push ?? false}
              disabled={!mayUpdate}
              onChange={(event) => setDraft({ ...draft, build_on_push: event.target.checked })}
            />
            Deploy each push to the branch
          </label>
        )}
        {mayUpdate && (changes.length > 0 || isPushChanged) && (
          <FormButtons action={isRevision ? "Save and deploy" : "Save"} />
        )}
      </Form>
    </section>
  );
}
