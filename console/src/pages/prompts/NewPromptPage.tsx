import { Link, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { TextField } from "../../ui/Field";
import { Form, FormButtons } from "../../ui/Form";
import { MessagesEditor } from "./MessagesEditor";
import { getVariables, newMessage, writeManifest } from "./manifest";
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

  const create = useChange("POST /repos", (prompt) => {
    const path = { owner: OWN, repo: prompt.repo.repo_handle };
    commit.mutate({ path, body: { manifest: writeManifest(null, messages) } });
  });

  const submit = () => create.mutate({ body: { repo_handle: name.trim(), description: description.trim() } });

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

  const variables = getVariables(messages, "f-string");

  return (
    <Form
      className="page form"
      // The prompt is made first, and then its first commit.
      change={create.isSuccess ? commit : create}
      onSubmit={submit}
    >
      <h1>New prompt</h1>
      <TextField
        label="Name"
        name="repo_handle"
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
      <FormButtons action="Create" isDisabled={!name.trim() || messages.length === 0}>
        <Link to="/prompts" className="button">
          Cancel
        </Link>
      </FormButtons>
    </Form>
  );
}
