import { useState } from "react";
import { useAgentApi, useAgentChange } from "../../api/agentQueries";
import type { Assistant } from "../../api/agentServer";
import { Confirm } from "../../ui/Confirm";
import { ShortId } from "../../ui/Copy";
import { Field } from "../../ui/Field";
import { isBranch, summarize } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { SchemaForm } from "../../ui/SchemaForm";
import type { Schema } from "../../ui/schema";
import { Ago } from "../../ui/Time";

interface Props {
  deploymentId: string;
  assistant: Assistant;
  // The schema of the context, or of the configurable values of an older graph.
  schema: Schema | null | undefined;
  isContext: boolean;
  // Values for the runs of this page, which the assistant does not have.
  values: Record<string, unknown>;
  onChange: (values: Record<string, unknown>) => void;
  onCreated: (assistantId: string) => void;
}

export function AssistantPanel({ deploymentId, assistant, schema, isContext, values, onChange, onCreated }: Props) {
  const [name, setName] = useState("");
  const save = useAgentChange(deploymentId, "PATCH /assistants/{assistant_id}", () => onChange({}));
  const create = useAgentChange(deploymentId, "POST /assistants", (newAssistant) => {
    setName("");
    onChange({});
    onCreated(newAssistant.assistant_id);
  });

  const [isDeleting, setDeleting] = useState(false);
  const remove = useAgentChange(deploymentId, "DELETE /assistants/{assistant_id}", () => {
    setDeleting(false);
    onCreated("");
  });

  const own = isContext ? assistant.context : (assistant.config.configurable ?? {});
  const ownValues = isBranch(own) ? (own as Record<string, unknown>) : {};
  const allValues = { ...ownValues, ...values };
  const body = isContext ? { context: allValues } : { config: { ...assistant.config, configurable: allValues } };
  const isSystem = assistant.metadata.created_by === "system";
  const error = save.error ?? create.error;

  return (
    <div className="stack">
      <dl className="facts">
        <div>
          <dt>Assistant</dt>
          <dd>{assistant.name}</dd>
        </div>
        <div>
          <dt>Graph</dt>
          <dd>
            <code>{assistant.graph_id}</code>
          </dd>
        </div>
        <div>
          <dt>Id</dt>
          <dd>
            <ShortId id={assistant.assistant_id} what="assistant id" />
          </dd>
        </div>
      </dl>
      <h3>{isContext ? "Context" : "Configuration"}</h3>
      {schema?.properties ? (
        <SchemaForm
          key={`${assistant.assistant_id} ${assistant.version}`}
          schema={schema}
          values={allValues}
          onChange={onChange}
        />
      ) : (
        <p className="soft">The graph takes none.</p>
      )}
      {Object.keys(values).length > 0 && <p className="soft">Runs of this page use these values, saved or not.</p>}
      {error && <Problem error={error} />}
      <div className="row">
        <button
          type="button"
          className="button"
          disabled={Object.keys(values).length === 0 || save.isPending}
          onClick={() => save.mutate({ path: { assistant_id: assistant.assistant_id }, body })}
        >
          Save as version
        </button>
        {!isSystem && (
          <button type="button" className="button danger" onClick={() => setDeleting(true)}>
            Delete the assistant
          </button>
        )}
      </div>
      {isDeleting && (
        <Confirm
          title={`Delete ${assistant.name}?`}
          action="Delete"
          change={remove}
          onConfirm={() => remove.mutate({ path: { assistant_id: assistant.assistant_id } })}
          onClose={() => setDeleting(false)}
        >
          <p>All versions of the assistant are deleted. This cannot be undone.</p>
        </Confirm>
      )}
      <Field label="New assistant with these values">
        {(attributes) => (
          <span className="row tight">
            <input {...attributes} value={name} placeholder="name" onChange={(event) => setName(event.target.value)} />
            <button
              type="button"
              className="button"
              disabled={!name.trim() || create.isPending}
              onClick={() => create.mutate({ body: { graph_id: assistant.graph_id, name: name.trim(), ...body } })}
            >
              Create
            </button>
          </span>
        )}
      </Field>
      <Versions deploymentId={deploymentId} assistant={assistant} isContext={isContext} />
    </div>
  );
}

function Versions({
  deploymentId,
  assistant,
  isContext,
}: {
  deploymentId: string;
  assistant: Assistant;
  isContext: boolean;
}) {
  const path = { assistant_id: assistant.assistant_id };
  const versions = useAgentApi(deploymentId, "POST /assistants/{assistant_id}/versions", { path, body: { limit: 50 } });
  const restore = useAgentChange(deploymentId, "POST /assistants/{assistant_id}/latest");

  return (
    <section aria-label="Versions" className="stack">
      <h3>Versions</h3>
      {(restore.error ?? versions.error) && <Problem error={(restore.error ?? versions.error) as never} />}
      <ul className="versions">
        {versions.data?.map((each) => (
          <li key={each.version}>
            <span>{each.version}</span>
            <code className="soft">{summarize(isContext ? each.context : (each.config.configurable ?? {}), 60)}</code>
            <Ago at={each.created_at} />
            {each.version === assistant.version ? (
              <span className="tag">in use</span>
            ) : (
              <button
                type="button"
                className="link"
                onClick={() => restore.mutate({ path, body: { version: each.version } })}
              >
                Use
              </button>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}
