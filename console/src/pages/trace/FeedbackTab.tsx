// What people and evaluators said about a run, and a form to say more.

import { type FormEvent, useId, useState } from "react";
import type { Feedback } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { score } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { LongText, summarize } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { Ago } from "../../ui/Time";

const SOURCES: Record<string, string> = {
  api: "API",
  app: "person",
  model: "model",
  auto_eval: "evaluator",
};

// What a thumb is called if nothing else is written.
const THUMB_KEY = "user_score";

export function FeedbackTab({ runId }: { runId: string }) {
  const feedback = useApi("GET /feedback", { query: { run: [runId], limit: 100 } }, { everyMs: 10_000 });
  const mayCreate = useMay("feedback:create");

  return (
    <div className="stack">
      {feedback.error && <Problem error={feedback.error} retry={() => void feedback.refetch()} />}
      {feedback.data?.length === 0 && <p className="soft">Nobody has judged this run yet.</p>}
      {feedback.data && feedback.data.length > 0 && (
        <ul className="feedback" aria-label="Feedback">
          {feedback.data.map((each) => (
            <FeedbackItem key={each.id} feedback={each} />
          ))}
        </ul>
      )}
      {mayCreate && <FeedbackForm runId={runId} />}
    </div>
  );
}

function FeedbackItem({ feedback }: { feedback: Feedback }) {
  const mayDelete = useMay("feedback:delete");
  const remove = useChange("DELETE /feedback/{feedback_id}");

  const source = (feedback.feedback_source as { type?: string } | null)?.type ?? "";
  const { comment, correction, value } = feedback;

  return (
    <li>
      <span className="row spread">
        <span className="row">
          <strong>{feedback.key}</strong>
          <ScoreText value={feedback.score} />
          {value != null && value !== "" && <span>{typeof value === "string" ? value : summarize(value)}</span>}
          <span className="soft small">
            {SOURCES[source] ?? source} · <Ago at={feedback.modified_at} />
          </span>
        </span>
        {mayDelete && (
          <button
            type="button"
            className="copy"
            aria-label={`Delete the feedback ${feedback.key}`}
            disabled={remove.isPending}
            onClick={() => remove.mutate({ path: { feedback_id: feedback.id } })}
          >
            <Icon name="trash" />
          </button>
        )}
      </span>
      {typeof comment === "string" && comment && <LongText text={comment} name="comment" />}
      {correction != null && (
        <p className="soft">Correction: {typeof correction === "string" ? correction : summarize(correction, 400)}</p>
      )}
      {remove.error && <Problem error={remove.error} />}
    </li>
  );
}

function ScoreText({ value }: { value: unknown }) {
  if (typeof value === "boolean") return <span className="number">{value ? "yes" : "no"}</span>;
  return typeof value === "number" ? <span className="number">{score(value)}</span> : null;
}

function FeedbackForm({ runId }: { runId: string }) {
  const id = useId();
  const configs = useApi("GET /feedback-configs", { query: { limit: 100 } }).data ?? [];
  const [key, setKey] = useState("");
  const [scoreText, setScoreText] = useState("");
  const [comment, setComment] = useState("");

  const create = useChange("POST /feedback", () => {
    setScoreText("");
    setComment("");
  });

  const config = configs.find((each) => each.feedback_key === key)?.feedback_config;

  const give = (value: number | null, name = key.trim() || THUMB_KEY) =>
    create.mutate({
      body: {
        run_id: runId,
        key: name,
        score: value,
        ...(comment.trim() ? { comment: comment.trim() } : {}),
        feedback_source: { type: "app" },
      },
    });

  const submit = (event: FormEvent) => {
    event.preventDefault();
    give(scoreText.trim() === "" ? null : Number(scoreText), key.trim() || (scoreText ? THUMB_KEY : "note"));
  };

  const isNumber = scoreText.trim() === "" || Number.isFinite(Number(scoreText));

  return (
    <form className="feedback-form" onSubmit={submit}>
      <div className="row">
        <input
          aria-label="Key of the feedback"
          placeholder="key, such as correct"
          list={`${id}-keys`}
          autoComplete="off"
          value={key}
          onChange={(event) => setKey(event.target.value)}
        />
        <datalist id={`${id}-keys`}>
          {configs.map((each) => (
            <option key={each.feedback_key} value={each.feedback_key} />
          ))}
        </datalist>
        {config?.categories ? (
          <select aria-label="Score" value={scoreText} onChange={(event) => setScoreText(event.target.value)}>
            <option value="">no score</option>
            {config.categories.map((each) => (
              <option key={each.value} value={String(each.value)}>
                {each.label ?? each.value}
              </option>
            ))}
          </select>
        ) : (
          <input
            className="short"
            aria-label="Score"
            placeholder={config?.max != null ? `${config.min ?? 0} to ${config.max}` : "score"}
            inputMode="decimal"
            aria-invalid={!isNumber}
            value={scoreText}
            onChange={(event) => setScoreText(event.target.value)}
          />
        )}
        <button
          type="button"
          className="button"
          aria-label="Thumb up"
          disabled={create.isPending}
          onClick={() => give(1)}
        >
          <Icon name="thumbUp" />
        </button>
        <button
          type="button"
          className="button"
          aria-label="Thumb down"
          disabled={create.isPending}
          onClick={() => give(0)}
        >
          <Icon name="thumbDown" />
        </button>
      </div>
      <textarea
        aria-label="Comment"
        placeholder="comment"
        rows={2}
        value={comment}
        onChange={(event) => setComment(event.target.value)}
      />
      {create.error && <Problem error={create.error} />}
      <div>
        <button
          type="submit"
          className="button"
          disabled={create.isPending || !isNumber || (!scoreText.trim() && !comment.trim())}
        >
          Add feedback
        </button>
      </div>
    </form>
  );
}
