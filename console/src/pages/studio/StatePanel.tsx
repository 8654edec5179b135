import { useState } from "react";
import { useAgentChange } from "../../api/agentQueries";
import type { ThreadState as State } from "../../api/agentServer";
import { Empty } from "../../ui/Empty";
import { isBranch, Json } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { JsonInput } from "../../ui/SchemaForm";

interface Props {
  deploymentId: string;
  threadId: string | undefined;
  state: State | undefined;
  // The whole state of a run that is under way.
  live: unknown;
  onEdited: () => void;
}

// The values of the state, each of which can be changed. A change is a new checkpoint after the one that is shown.
export function StatePanel({ deploymentId, threadId, state, live, onEdited }: Props) {
  const [edited, setEdited] = useState<string | null>(null);
  const values = live ?? state?.values;
  if (!threadId || !isBranch(values) || Array.isArray(values)) {
    return <Empty title="No state yet">The first run of the thread writes it.</Empty>;
  }

  return (
    <div className="stack">
      {Object.entries(values).map(([name, value]) => (
        <section key={name} className="channel" aria-label={name}>
          <div className="card-head">
            <h3>
              <code>{name}</code>
            </h3>
            {live === undefined && (
              <button type="button" className="link" onClick={() => setEdited(edited === name ? null : name)}>
                {edited === name ? "Cancel" : "Edit"}
              </button>
            )}
          </div>
          {edited === name && live === undefined ? (
            <Editor
              deploymentId={deploymentId}
              threadId={threadId}
              checkpoint={state?.checkpoint?.checkpoint_id ?? null}
              name={name}
              value={value}
              nodes={state?.next ?? []}
              onDone={() => {
                setEdited(null);
                onEdited();
              }}
            />
          ) : (
            <Json value={value} name={name} open={1} />
          )}
        </section>
      ))}
    </div>
  );
}

interface EditorProps {
  deploymentId: string;
  threadId: string;
  checkpoint: string | null;
  name: string;
  value: unknown;
  nodes: string[];
  onDone: () => void;
}

function Editor({ deploymentId, threadId, checkpoint, name, value, onDone }: EditorProps) {
  const [next, setNext] = useState<unknown>(value);
  const [asNode, setAsNode] = useState("");
  const [isWhole, setWhole] = useState(false);
  const save = useAgentChange(deploymentId, "POST /threads/{thread_id}/state", onDone);

  const submit = () =>
    save.mutate({
      path: { thread_id: threadId },
      body: {
        values: { [name]: isWhole ? { __overwrite__: next } : next },
        ...(checkpoint ? { checkpoint: { checkpoint_id: checkpoint, checkpoint_ns: "" } } : {}),
        ...(asNode ? { as_node: asNode } : {}),
      },
    });

  return (
    <div className="stack">
      <JsonInput label={`New value of ${name}`} hint="JSON" value={value} rows={6} onChange={setNext} />
      {Array.isArray(value) && (
        <label className="row">
          <input type="checkbox" checked={isWhole} onChange={(event) => setWhole(event.target.checked)} />
          Replace the whole list; otherwise the graph adds to it, and messages replace those with the same id
        </label>
      )}
      <label className="row">
        As the node
        <input value={asNode} placeholder="the last one" onChange={(event) => setAsNode(event.target.value)} />
      </label>
      {save.error && <Problem error={save.error} />}
      <div className="row">
        <button type="button" className="button main" disabled={next === undefined || save.isPending} onClick={submit}>
          Save as a new checkpoint
        </button>
      </div>
    </div>
  );
}
