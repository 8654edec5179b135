import { useState } from "react";
import type { Commit } from "../../api/platform";
import { useChange } from "../../api/queries";
import { TextField } from "../../ui/Field";
import { Form, FormButtons } from "../../ui/Form";
import { Problem } from "../../ui/Problem";
import { JsonInput } from "../../ui/SchemaForm";
import { MessagesEditor } from "./MessagesEditor";
import { getVariables, newMessage, readManifest, writeManifest } from "./manifest";
import { OWN, useCommit } from "./usePrompt";

interface Props {
  handle: string;
  // The commit that the new one follows, and the one whose messages it begins with.
  latest: Commit | undefined;
  from: Commit | undefined;
  onClose: () => void;
  onDone: () => void;
}

export function CommitForm(props: Props) {
  const commit = useCommit(props.handle, props.from?.commit_hash);
  if (commit.error) return <Problem error={commit.error} />;
  if (props.from !== undefined && !commit.data) return null;
  return <OpenForm {...props} manifest={commit.data?.manifest ?? null} />;
}

function OpenForm({ handle, latest, from, manifest, onClose, onDone }: Props & { manifest: unknown }) {
  const [read] = useState(() => (manifest === null ? null : readManifest(manifest)));
  const [messages, setMessages] = useState(() => read?.messages ?? [newMessage("system")]);
  const [json, setJson] = useState<unknown>(manifest);
  const [description, setDescription] = useState("");

  // If somebody else commits meanwhile, the platform refuses this commit: its parent is no longer the latest.
  const [parent] = useState(latest?.commit_hash ?? null);
  const commit = useChange("POST /commits/{owner}/{repo}", onDone);

  const isJson = manifest !== null && read === null;

  const submit = () =>
    commit.mutate({
      path: { owner: OWN, repo: handle },
      body: {
        manifest: isJson ? (json as Record<string, unknown>) : writeManifest(manifest, messages),
        parent_commit: parent,
        description: description.trim() || null,
      },
    });

  const variables = getVariables(messages, read?.format ?? "f-string");

  return (
    <Form aria-label="New version" change={commit} onSubmit={submit}>
      {from !== latest && from && (
        <p className="soft">
          Begins with the messages of <code>{from.commit_hash.slice(0, 8)}</code> and follows the latest commit.
        </p>
      )}
      {isJson ? (
        <JsonInput label="Manifest" rows={16} value={json} onChange={setJson} />
      ) : (
        <MessagesEditor messages={messages} onChange={setMessages} />
      )}
      {!isJson && variables.length > 0 && <p className="soft">Variables: {variables.join(", ")}</p>}
      <TextField
        label="What changed"
        spellCheck
        hint="One line for the list of commits."
        maxLength={1000}
        value={description}
        onChange={setDescription}
      />
      <FormButtons
        action="Commit"
        isDisabled={isJson ? json === undefined : messages.length === 0}
        onCancel={onClose}
      />
    </Form>
  );
}
