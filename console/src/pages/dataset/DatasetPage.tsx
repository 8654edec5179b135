// One dataset: its examples, its versions, and the experiments on it.

import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { request } from "../../api/client";
import type { Dataset } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Confirm } from "../../ui/Confirm";
import { ShortId } from "../../ui/Copy";
import { TextField } from "../../ui/Field";
import { Form, FormButtons } from "../../ui/Form";
import { count } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";
import { Tabs } from "../../ui/Tabs";
import { Ago } from "../../ui/Time";
import { useDownload } from "../../ui/useDownload";
import { Examples } from "./Examples";
import { Experiments } from "./Experiments";
import { Versions } from "./Versions";

const datasetRoute = getRouteApi("/datasets/$datasetId");

const VIEWS = [
  ["examples", "Examples"],
  ["experiments", "Experiments"],
  ["versions", "Versions"],
] as const;

export function DatasetPage() {
  const { datasetId } = datasetRoute.useParams();
  const { view: viewName } = datasetRoute.useSearch();
  const query = useApi("GET /datasets/{dataset_id}", { path: { dataset_id: datasetId } });

  const view = VIEWS.find(([name]) => name === viewName)?.[0] ?? "examples";

  if (!query.data) {
    return query.error ? (
      <div className="page">
        <Problem error={query.error} retry={() => void query.refetch()} />
      </div>
    ) : null;
  }

  return (
    <div className="page full wide">
      <Head dataset={query.data} />
      <Tabs label="Parts of the dataset" tabs={VIEWS} selected={view} search={(next) => ({ view: next })} />
      {view === "examples" && <Examples datasetId={datasetId} />}
      {view === "experiments" && <Experiments datasetId={datasetId} name={query.data.name} />}
      {view === "versions" && <Versions datasetId={datasetId} />}
    </div>
  );
}

function Head({ dataset }: { dataset: Dataset }) {
  const mayUpdate = useMay("datasets:update");
  const mayDelete = useMay("datasets:delete");
  const [dialog, setDialog] = useState<"edit" | "delete" | null>(null);

  return (
    <>
      <div className="head">
        <div>
          <h1>{dataset.name}</h1>
          {dataset.description && <p className="soft">{dataset.description}</p>}
        </div>
        <dl className="head-facts">
          <div>
            <dt>Examples</dt>
            <dd className="number">{count(dataset.example_count)}</dd>
          </div>
          <div>
            <dt>Experiments</dt>
            <dd className="number">{count(dataset.session_count)}</dd>
          </div>
          <div>
            <dt>Changed</dt>
            <dd>
              <Ago at={dataset.modified_at} />
            </dd>
          </div>
          <div>
            <dt>Id</dt>
            <dd>
              <ShortId id={dataset.id} what="id of the dataset" />
            </dd>
          </div>
        </dl>
        <div className="row">
          <Downloads dataset={dataset} />
          {mayUpdate && (
            <button type="button" className="button" onClick={() => setDialog(dialog === "edit" ? null : "edit")}>
              <Icon name="edit" />
              Edit
            </button>
          )}
          {mayDelete && (
            <button type="button" className="button danger" onClick={() => setDialog("delete")}>
              <Icon name="trash" />
              Delete
            </button>
          )}
        </div>
      </div>
      {dialog === "edit" && <Edit dataset={dataset} onDone={() => setDialog(null)} />}
      {dialog === "delete" && <Delete dataset={dataset} onClose={() => setDialog(null)} />}
    </>
  );
}

function Downloads({ dataset }: { dataset: Dataset }) {
  const { as_of: asOf } = datasetRoute.useSearch();
  const download = useDownload();

  const save = (kind: "csv" | "jsonl") =>
    download.mutate({
      read: () =>
        request(`GET /datasets/{dataset_id}/${kind}`, {
          path: { dataset_id: dataset.id },
          query: asOf ? { as_of: asOf } : {},
        }),
      fileName: `${dataset.name.replace(/[^\w.-]+/g, "-")}.${kind}`,
    });

  return (
    <>
      {download.error && <Problem error={download.error} />}
      <button type="button" className="button" disabled={download.isPending} onClick={() => save("jsonl")}>
        <Icon name="download" />
        JSONL
      </button>
      <button type="button" className="button" disabled={download.isPending} onClick={() => save("csv")}>
        <Icon name="download" />
        CSV
      </button>
    </>
  );
}

function Edit({ dataset, onDone }: { dataset: Dataset; onDone: () => void }) {
  const [name, setName] = useState(dataset.name);
  const [description, setDescription] = useState(dataset.description ?? "");
  const change = useChange("PATCH /datasets/{dataset_id}", onDone);

  const save = () =>
    change.mutate({
      path: { dataset_id: dataset.id },
      body: { name: name.trim(), description: description.trim() || null },
    });

  return (
    <Form className="card card-body fields" change={change} onSubmit={save}>
      <div className="fields two">
        <TextField label="Name" isRequired value={name} onChange={setName} />
        <TextField label="Description" spellCheck value={description} onChange={setDescription} />
      </div>
      <FormButtons action="Save" isDisabled={!name.trim()} onCancel={onDone} />
    </Form>
  );
}

function Delete({ dataset, onClose }: { dataset: Dataset; onClose: () => void }) {
  const navigate = useNavigate();
  const remove = useChange("DELETE /datasets/{dataset_id}", () => void navigate({ to: "/datasets", search: {} }));

  return (
    <Confirm
      title={`Delete ${dataset.name}?`}
      action="Delete for good"
      name={dataset.name}
      change={remove}
      onConfirm={() => remove.mutate({ path: { dataset_id: dataset.id } })}
      onClose={onClose}
    >
      <p>All examples and versions are deleted. Experiments stay as projects with their traces.</p>
    </Confirm>
  );
}
