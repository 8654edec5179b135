import { Link, useNavigate } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { problemAt } from "../../api/client";
import { useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { TextField } from "../../ui/Field";
import { Problem } from "../../ui/Problem";
import { MessagesEditor } from "./MessagesEditor";
import { newMessage, variablesOf, writeManifest } from "./manifest";
import { OWN } from "./usePrompt";

export function NewPromptPage() {
  const navigate = useNavigate();
  const mayCreate = useMay("prompts:create");
  const [name, setName] = useState("");
  const [description, setDescription] = useState("");
  const [messages, setMessages] = useState(() => [newMessage("system"), newMessage("human", "{question}")]);

  const commit = useChange(
    "POST /commits/{owner}/{repo}",
    () => void navigate({ to: "/prompts/$promptName", params: { promptName: name.trim() } }),
  );

  const create = useChange("POST /repos", (made) => {
    const path = { owner: OWN, repo: made.repo.repo_handle };
    commit.mutate({ path, body: { manifest: writeManifest(null, messages) } });
  });

  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate({ body: { repo_handle: name.trim(), description: description.trim() } });
  };

  if (!mayCreate) {
    return (
      <Empty title="You may not create prompts">
        An admin of the workspace can give you the role Editor. Until then the prompts of others are{" "}
        <Link to="/prompts" className="text">
          here
        </Link>
        .
      </Empty>
    );
  }

  const problem = problemAt(create.error, "repo_handle");
  const error = commit.error ?? (problem ? null : create.error);
  const variables = variablesOf(messages, "f-string");

  return (
    <form className="page form" onSubmit={submit} noValidate>
      <h1>New prompt</h1>
      <TextField
        label="Name"
        error={problem}
        hint="Lower-case letters, digits, hyphens and underscores."
        isRequired
        autoFocus
        placeholder="support-answer"
        value={name}
        onChange={setName}
      />
      <TextField label="Description" spellCheck value={description} onChange={setDescription} />
      <section aria-labelledby="messages" className="fields">
        <div>
          <h2 id="messages">Messages</h2>
          <p className="soft">
            {"{name} is a variable. "}
            {variables.length > 0 && `This prompt has ${variables.join(", ")}.`}
          </p>
        </div>
        <MessagesEditor messages={messages} onChange={setMessages} />
      </section>
      {error && <Problem error={error} />}
      <div className="row">
        <button
          type="submit"
          className="button main"
          disabled={create.isPending || commit.isPending || !name.trim() || messages.length === 0}
        >
          Create
        </button>
        <Link to="/prompts" className="button">
          Cancel
        </Link>
      </div>
    </form>
  );
}
