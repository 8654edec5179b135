// What can be done with marked runs: examples of a dataset, work for people, delete.

import { useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { type FormEvent, useState } from "react";
import { ApiError, call } from "../../api/client";
import { useApi, useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Confirm } from "../../ui/Confirm";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";

interface Marked {
  id: string;
  name: string;
  trace_id: string;
}

interface Props {
  runs: Marked[];
  projectId: string;
  onDone: () => void;
}

export function RunActions({ runs, projectId, onDone }: Props) {
  const mayUpdate = useMay("datasets:update");
  const mayQueue = useMay("annotation-queues:update");
  const mayDelete = useMay("runs:delete");
  const [isDeleting, setDeleting] = useState(false);

  return (
    <div className="actions card">
      <span className="number">
        {runs.length} {runs.length === 1 ? "run" : "runs"} marked
      </span>
      {mayUpdate && <AddToDataset runs={runs} />}
      {mayQueue && <AddToQueue runs={runs} />}
      {mayDelete && (
        <button type="button" className="button danger" onClick={() => setDeleting(true)}>
          <Icon name="trash" />
          Delete
        </button>
      )}
      <button type="button" className="copy" aria-label="Close the actions" onClick={onDone}>
        <Icon name="close" />
      </button>
      {isDeleting && (
        <DeleteTraces runs={runs} projectId={projectId} onClose={() => setDeleting(false)} onDone={onDone} />
      )}
    </div>
  );
}

function AddToDataset({ runs }: { runs: Marked[] }) {
  const datasets = useApi("GET /datasets", { query: { sort_by: "modified_at", limit: 100 } }).data ?? [];
  const [datasetId, setChosen] = useState("");
  const [split, setSplit] = useState("");
  const cache = useQueryClient();
  const [state, setState] = useState<{ isBusy?: boolean; error?: ApiError; added?: string }>({});

  const dataset = datasets.find((each) => each.id === datasetId);

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setState({ isBusy: true });

    try {
      const examples = runs.map((run) => ({
        dataset_id: datasetId,
        source_run_id: run.id,
        use_source_run_io: true,
        ...(split.trim() ? { split: split.trim() } : {}),
      }));

      await call("POST /examples/bulk", { body: examples });
      setState({ added: datasetId });
      await cache.invalidateQueries();
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      setState({ error: failure });
    }
  };

  if (datasets.length === 0) {
    return (
      <span className="soft">
        No dataset yet:{" "}
        <Link to="/datasets/new" className="text">
          create one
        </Link>
      </span>
    );
  }

  return (
    <form className="row" onSubmit={(event) => void submit(event)}>
      <select aria-label="Dataset" value={datasetId} onChange={(event) => setChosen(event.target.value)}>
        <option value="">Dataset…</option>
        {datasets.map((each) => (
          <option key={each.id} value={each.id}>
            {each.name}
          </option>
        ))}
      </select>
      {datasetId && (
        <input
          className="short"
          aria-label="Split"
          placeholder="split (base)"
          value={split}
          onChange={(event) => setSplit(event.target.value)}
        />
      )}
      <button type="submit" className="button" disabled={!datasetId || state.isBusy}>
        Add as {runs.length === 1 ? "example" : "examples"}
      </button>
      {state.added && dataset && (
        <span role="status">
          Added to{" "}
          <Link to="/datasets/$datasetId" params={{ datasetId: dataset.id }} search={{}} className="text">
            {dataset.name}
          </Link>
        </span>
      )}
      {state.error && <Problem error={state.error} />}
    </form>
  );
}

function AddToQueue({ runs }: { runs: Marked[] }) {
  const queues = useApi("GET /annotation-queues", { query: { limit: 100 } }).data ?? [];
  const [queueId, setChosen] = useState("");
  const add = useChange("POST /annotation-queues/{queue_id}/runs");

  const queue = queues.find((each) => each.id === queueId);

  const submit = (event: FormEvent) => {
    event.preventDefault();
    add.mutate({ path: { queue_id: queueId }, body: runs.map((run) => run.id) });
  };

  if (queues.length === 0) {
    return (
      <span className="soft">
        No annotation queue yet:{" "}
        <Link to="/annotation/new" className="text">
          create one
        </Link>
      </span>
    );
  }

  return (
    <form className="row" onSubmit={submit}>
      <select
        aria-label="Annotation queue"
        value={queueId}
        onChange={(event) => {
          setChosen(event.target.value);
          add.reset();
        }}
      >
        <option value="">Annotation queue…</option>
        {queues.map((each) => (
          <option key={each.id} value={each.id}>
            {each.name}
          </option>
        ))}
      </select>
      <button type="submit" className="button" disabled={!queueId || add.isPending}>
        Add to the queue
      </button>
      {add.isSuccess && queue && (
        <span role="status">
          Added to{" "}
          <Link to="/annotation/$queueId" params={{ queueId: queue.id }} search={{}} className="text">
            {queue.name}
          </Link>
        </span>
      )}
      {add.error && <Problem error={add.error} />}
    </form>
  );
}

function DeleteTraces({ runs, projectId, onClose, onDone }: Props & { onClose: () => void }) {
  const traces = [...new Set(runs.map((run) => run.trace_id))];
  const remove = useChange("POST /runs/delete", onDone);

  return (
    <Confirm
      title={`Delete ${traces.length} ${traces.length === 1 ? "trace" : "traces"}?`}
      action="Delete for good"
      change={remove}
      onConfirm={() => remove.mutate({ body: { session_id: projectId, trace_ids: traces } })}
      onClose={onClose}
    >
      <p>All runs of these traces are deleted with their feedback and attachments. This cannot be undone.</p>
    </Confirm>
  );
}
