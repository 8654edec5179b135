// A new dataset: empty, or with the examples of a file.

import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { ApiError, call } from "../../api/client";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { Field, TextField } from "../../ui/Field";
import { Form, FormButtons } from "../../ui/Form";
import { count } from "../../ui/format";
import { type ExampleDraft, type ExampleFile, FileProblem, readFile, toExamples } from "./files";

const BATCH = 500;
const ROLES = ["inputs", "outputs", "metadata", "none"] as const;
type Role = (typeof ROLES)[number];

const ROLE_WORDS: Record<Role, string> = {
  inputs: "Input",
  outputs: "Reference output",
  metadata: "Metadata",
  none: "Leave out",
};

export function NewDatasetPage() {
  const mayCreate = useMay("datasets:create");
  const navigate = useNavigate();
  const cache = useQueryClient();
  const [name, setName] = useState("");
  const [description, setDescription] = useState("");
  const [file, setFile] = useState<ExampleFile | null>(null);
  const [roles, setRoles] = useState<Record<string, Role>>({});

  const [state, setState] = useState<{ done?: number; error?: ApiError; problem?: string }>({});
  if (!mayCreate)
    return <Empty title="You may not create datasets">An admin can give you a role that allows it.</Empty>;

  const choose = async (upload: File | undefined) => {
    setState({});
    setFile(null);
    if (!upload) return;

    try {
      const content = await readFile(upload);
      setFile(content);
      setRoles(Object.fromEntries(content.columns.map((column) => [column, guessRole(column)])));
      if (!name) setName(upload.name.replace(/\.\w+$/, ""));
    } catch (failure) {
      if (!(failure instanceof FileProblem)) throw failure;
      setState({ problem: failure.message });
    }
  };

  const submit = async () => {
    try {
      const drafts = file ? toExamples(file, roles) : [];
      setState({ done: 0 });
      const dataset = await call("POST /datasets", {
        body: { name: name.trim(), ...(description.trim() ? { description: description.trim() } : {}) },
      });

      try {
        await send(dataset.id, drafts, (done) => setState({ done }));
      } catch (failure) {
        // A dataset with some of its examples would look complete. If it cannot be deleted either, the page shows why
        // the examples were refused, not why the deletion failed.
        await call("DELETE /datasets/{dataset_id}", { path: { dataset_id: dataset.id } }).catch(() => undefined);
        throw failure;
      }

      await cache.invalidateQueries();
      await navigate({ to: "/datasets/$datasetId", params: { datasetId: dataset.id }, search: {} });
    } catch (failure) {
      if (failure instanceof ApiError) setState({ error: failure });
      else if (failure instanceof FileProblem) setState({ problem: failure.message });
      else throw failure;
    }
  };

  const isBusy = state.done !== undefined;
  const hasInputs = !file?.columns.length || Object.values(roles).includes("inputs");

  return (
    <div className="page form">
      <h1>New dataset</h1>
      <Form change={{ error: state.error ?? null, isPending: isBusy }} onSubmit={() => void submit()}>
        <TextField label="Name" isRequired name="name" value={name} onChange={setName} />
        <TextField label="Description" spellCheck value={description} onChange={setDescription} />
        <Field
          label="File"
          hint="CSV with a header, or lines of JSON with inputs, outputs and metadata. Without a file the dataset is empty."
          error={state.problem}
        >
          {(attributes) => (
            <input
              {...attributes}
              type="file"
              accept=".csv,.jsonl,.ndjson,text/csv"
              // A file that was corrected is chosen again under the same name.
              onClick={(event) => {
                event.currentTarget.value = "";
              }}
              onChange={(event) => void choose(event.target.files?.[0])}
            />
          )}
        </Field>
        {file && (
          <section className="card" aria-label="Contents of the file">
            <h2>
              {count(file.rows.length)} {file.rows.length === 1 ? "example" : "examples"}
            </h2>
            {file.columns.length > 0 && (
              <div className="card-body columns">
                {file.columns.map((column) => (
                  <label key={column} className="row spread">
                    <code>{column}</code>
                    <select
                      aria-label={`Column ${column}`}
                      value={roles[column]}
                      onChange={(event) => setRoles({ ...roles, [column]: event.target.value as Role })}
                    >
                      {ROLES.map((role) => (
                        <option key={role} value={role}>
                          {ROLE_WORDS[role]}
                        </option>
                      ))}
                    </select>
                  </label>
                ))}
              </div>
            )}
          </section>
        )}
        {!hasInputs && <p className="bad-text">Choose at least one column as input.</p>}
        <FormButtons
          action={isBusy && file ? `${count(state.done)} of ${count(file.rows.length)}…` : "Create"}
          isDisabled={!name.trim() || !hasInputs}
        />
      </Form>
    </div>
  );
}

async function send(datasetId: string, drafts: ExampleDraft[], onDone: (count: number) => void) {
  for (let first = 0; first < drafts.length; first += BATCH) {
    const some = drafts.slice(first, first + BATCH);
    await call("POST /examples/bulk", { body: some.map((draft) => ({ ...draft, dataset_id: datasetId })) });
    onDone(first + some.length);
  }
}

function guessRole(column: string): Role {
  if (/^(outputs?|answer|expected|reference|label|target)\b/i.test(column)) return "outputs";
  if (/^(metadata|meta)\b/i.test(column)) return "metadata";
  return /^(id|dataset_id)$/i.test(column) ? "none" : "inputs";
}
