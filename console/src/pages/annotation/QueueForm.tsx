// A queue to create or to change: what people are asked about each run.

import { useQueryClient } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { ApiError, call } from "../../api/client";
import type { FeedbackConfig, Queue, RubricItem } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Confirm } from "../../ui/Confirm";
import { Empty } from "../../ui/Empty";
import { Field, TextField } from "../../ui/Field";
import { Form, FormButtons } from "../../ui/Form";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";
import { getScaleName, SCALES, type ScaleName } from "./scales";

const editQueueRoute = getRouteApi("/annotation/$queueId/edit");

interface Draft {
  number: number;
  key: string;
  description: string;
  scale: ScaleName;
  isRequired: boolean;
}

let lastNumber = 0;

function toDraft(item?: RubricItem, config?: FeedbackConfig): Draft {
  lastNumber += 1;

  return {
    number: lastNumber,
    key: item?.feedback_key ?? "",
    description: item?.description ?? "",
    scale: config ? getScaleName(config.feedback_config) : "five",
    isRequired: item?.is_required ?? false,
  };
}

export function NewQueuePage() {
  const mayCreate = useMay("annotation-queues:create");
  if (!mayCreate) return <Empty title="You may not create queues">An admin can give you a role that allows it.</Empty>;
  return <QueueForm configs={[]} />;
}

export function EditQueuePage() {
  const { queueId } = editQueueRoute.useParams();
  const queue = useApi("GET /annotation-queues/{queue_id}", { path: { queue_id: queueId } });
  const configs = useApi("GET /feedback-configs", { query: { limit: 100 } });
  const mayUpdate = useMay("annotation-queues:update");

  if (!mayUpdate) return <Empty title="You may not change queues">An admin can give you a role that allows it.</Empty>;
  if (queue.error) return <Problem error={queue.error} />;
  if (!queue.data || !configs.data) return null;

  return <QueueForm key={queueId} queue={queue.data} configs={configs.data} />;
}

function QueueForm({ queue, configs }: { queue?: Queue; configs: FeedbackConfig[] }) {
  const navigate = useNavigate();
  const cache = useQueryClient();
  const mayDelete = useMay("annotation-queues:delete");
  const [name, setName] = useState(queue?.name ?? "");
  const [description, setDescription] = useState(queue?.description ?? "");
  const [instructions, setInstructions] = useState(queue?.rubric_instructions ?? "");

  const [items, setItems] = useState<Draft[]>(() =>
    queue
      ? queue.rubric_items.map((item) =>
          toDraft(
            item,
            configs.find((each) => each.feedback_key === item.feedback_key),
          ),
        )
      : [toDraft({ feedback_key: "correct" })],
  );

  const [error, setError] = useState<ApiError | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [isDeleting, setDeleting] = useState(false);

  const change = (number: number, changes: Partial<Draft>) =>
    setItems(items.map((each) => (each.number === number ? { ...each, ...changes } : each)));

  const submit = async () => {
    setBusy(true);
    setError(null);
    const questions = items.filter((each) => each.key.trim());

    const body = {
      name: name.trim(),
      description: description.trim(),
      rubric_instructions: instructions.trim(),
      rubric_items: questions.map((each) => ({
        feedback_key: each.key.trim(),
        description: each.description.trim() || null,
        is_required: each.isRequired,
      })),
    };

    try {
      await storeScales(questions);
      const result = queue
        ? await call("PATCH /annotation-queues/{queue_id}", { path: { queue_id: queue.id }, body })
        : await call("POST /annotation-queues", { body });

      await cache.invalidateQueries();
      await navigate({ to: "/annotation/$queueId", params: { queueId: result.id }, search: {} });
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      setError(failure);
    } finally {
      setBusy(false);
    }
  };

  return (
    <div className="page form">
      <h1>{queue ? `Edit ${queue.name}` : "New annotation queue"}</h1>
      <Form change={{ error, isPending: isBusy }} onSubmit={() => void submit()}>
        <TextField label="Name" isRequired value={name} onChange={setName} />
        <TextField label="Description" spellCheck value={description} onChange={setDescription} />
        <Field label="Instructions" hint="Shown to people next to every run. Markdown is formatted.">
          {(attributes) => (
            <textarea
              {...attributes}
              rows={4}
              value={instructions}
              onChange={(event) => setInstructions(event.target.value)}
            />
          )}
        </Field>
        <section className="card" aria-label="Questions">
          <h2>Questions</h2>
          <div className="card-body fields">
            {items.map((item, index) => (
              <div key={item.number} className="question-draft">
                <input
                  aria-label={`Key of question ${index + 1}`}
                  placeholder="key, such as correct"
                  value={item.key}
                  onChange={(event) => change(item.number, { key: event.target.value })}
                />
                <select
                  aria-label={`Scale of question ${index + 1}`}
                  value={item.scale}
                  onChange={(event) => change(item.number, { scale: event.target.value as ScaleName })}
                >
                  {SCALES.map(({ name: scale, title }) => (
                    <option key={scale} value={scale}>
                      {title}
                    </option>
                  ))}
                </select>
                <input
                  aria-label={`Description of question ${index + 1}`}
                  placeholder="what it asks"
                  value={item.description}
                  onChange={(event) => change(item.number, { description: event.target.value })}
                />
                <label className="check">
                  <input
                    type="checkbox"
                    checked={item.isRequired}
                    onChange={(event) => change(item.number, { isRequired: event.target.checked })}
                  />
                  Required
                </label>
                <button
                  type="button"
                  className="button"
                  aria-label={`Remove question ${index + 1}`}
                  onClick={() => setItems(items.filter((each) => each.number !== item.number))}
                >
                  <Icon name="close" />
                </button>
              </div>
            ))}
            <div>
              <button type="button" className="button" onClick={() => setItems([...items, toDraft()])}>
                <Icon name="plus" />
                Add a question
              </button>
            </div>
          </div>
        </section>
        <FormButtons action={queue ? "Save" : "Create"} isDisabled={!name.trim()}>
          {queue && mayDelete && (
            <button type="button" className="button danger" onClick={() => setDeleting(true)}>
              <Icon name="trash" />
              Delete this queue
            </button>
          )}
        </FormButtons>
      </Form>
      {queue && isDeleting && <DeleteQueue queue={queue} onClose={() => setDeleting(false)} />}
    </div>
  );
}

// The scale of a key is shared by all queues and pages of the workspace.
async function storeScales(items: Draft[]) {
  for (const item of items) {
    const scale = SCALES.find(({ name }) => name === item.scale)?.scale;
    if (!scale) continue;

    const body = { feedback_key: item.key.trim(), feedback_config: scale };
    try {
      await call("PATCH /feedback-configs", { body });
    } catch (failure) {
      if (!(failure instanceof ApiError) || failure.status !== 404) throw failure;
      await call("POST /feedback-configs", { body });
    }
  }
}

function DeleteQueue({ queue, onClose }: { queue: Queue; onClose: () => void }) {
  const navigate = useNavigate();
  const remove = useChange("DELETE /annotation-queues/{queue_id}", () => void navigate({ to: "/annotation" }));

  return (
    <Confirm
      title={`Delete ${queue.name}?`}
      action="Delete for good"
      change={remove}
      onConfirm={() => remove.mutate({ path: { queue_id: queue.id } })}
      onClose={onClose}
    >
      <p>Its runs and what people said about them stay.</p>
    </Confirm>
  );
}
