// The questions of a queue about one run, answered with digits.

import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { ApiError, call } from "../../api/client";
import type { Feedback, FeedbackConfig, Queue, RubricItem } from "../../api/platform";
import { useApi } from "../../api/queries";
import { useKey } from "../../shell/keys";
import { useMay, useSession } from "../../shell/session";
import { Problem } from "../../ui/Problem";
import { getChoices } from "./scales";

const NOTE = "note";
const DEFAULT: RubricItem[] = [{ feedback_key: "quality", description: "How good is it?" }];
const DIGITS = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"] as const;

// An answer is a score, or a text where the scale has no numbers.
type Answers = Record<string, number | string | undefined>;

interface Props {
  queue: Queue;
  runId: string;
  hasPrevious: boolean;
  onDone: () => void;
  onSkip: () => void;
  onPrevious: () => void;
}

export function Judgement({ queue, runId, hasPrevious, onDone, onSkip, onPrevious }: Props) {
  const { identity } = useSession();
  const cache = useQueryClient();
  const mayJudge = useMay("feedback:create");
  const mayReview = useMay("annotation-queues:update");
  const configs = useApi("GET /feedback-configs", { query: { limit: 100 } }).data;
  const feedback = useApi("GET /feedback", { query: { run: [runId], limit: 100 } });

  const own = (feedback.data ?? []).filter((each) => isOwn(each, identity.user_id));
  const items = queue.rubric_items.length ? queue.rubric_items : DEFAULT;
  const [changes, setChanges] = useState<Answers>({});
  const [active, setActive] = useState(0);
  const [state, setState] = useState<{ isBusy?: boolean; error?: ApiError }>({});
  const note = useRef<HTMLTextAreaElement>(null);

  const answers: Answers = { ...toAnswers(own), ...changes };
  const missing = items.filter((item) => item.is_required && isEmpty(answers[item.feedback_key]));
  const answer = (key: string, value: number | string | undefined) => setChanges((old) => ({ ...old, [key]: value }));

  const choose = (digit: string) => {
    const item = items[active];
    const choice = item && getChoices(findScale(configs, item))?.find((each) => each.key === digit);
    if (!item || !choice || !mayJudge) return;
    answer(item.feedback_key, choice.value);
    setActive(Math.min(active + 1, items.length - 1));
  };

  const finish = async () => {
    if (missing.length || state.isBusy || !mayJudge || !mayReview) return;
    setState({ isBusy: true });

    try {
      const texts = items
        .filter((item) => findScale(configs, item)?.type === "freeform")
        .map((item) => item.feedback_key);
      await store(runId, answers, changes, own, texts);

      await call("PATCH /annotation-queues/{queue_id}/runs/{run_id}", {
        path: { queue_id: queue.id, run_id: runId },
        body: { last_reviewed_time: new Date().toISOString() },
      });

      onDone();
      await cache.invalidateQueries();
    } catch (failure) {
      // Some answers may have been stored. Without their ids the next attempt would store them once more.
      await feedback.refetch();
      setState({ error: failure instanceof ApiError ? failure : new ApiError(500, String(failure), [], null) });
    }
  };

  useDigits(choose);
  useKey("j", () => setActive(Math.min(active + 1, items.length - 1)));
  useKey("k", () => setActive(Math.max(active - 1, 0)));
  useKey("n", () => note.current?.focus());
  useKey("d", () => void finish());
  useKey("s", onSkip);
  useKey("p", onPrevious);

  return (
    <section className="card judgement" aria-label="Judgement">
      <div className="card-body fields">
        {items.map((item, index) => (
          <Question
            key={item.feedback_key}
            item={item}
            config={configs?.find((each) => each.feedback_key === item.feedback_key)}
            value={answers[item.feedback_key]}
            isActive={index === active}
            isDisabled={!mayJudge}
            onAnswer={(value) => {
              setActive(index);
              answer(item.feedback_key, value);
            }}
          />
        ))}
        <label className="field">
          <span>
            Note <kbd>n</kbd>
          </span>
          <textarea
            ref={note}
            rows={3}
            disabled={!mayJudge}
            value={String(answers[NOTE] ?? "")}
            onChange={(event) => answer(NOTE, event.target.value)}
            onKeyDown={(event) => {
              if (event.key === "Escape") event.currentTarget.blur();
              if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void finish();
            }}
          />
        </label>
        {state.error && <Problem error={state.error} />}
        {missing.length > 0 && (
          <p className="soft">Still to answer: {missing.map((item) => item.feedback_key).join(", ")}</p>
        )}
        <div className="row">
          {mayJudge && mayReview && (
            <button
              type="button"
              className="button main"
              disabled={missing.length > 0 || state.isBusy}
              onClick={() => void finish()}
            >
              Done <kbd>d</kbd>
            </button>
          )}
          <button type="button" className="button" onClick={onSkip}>
            Skip <kbd>s</kbd>
          </button>
          <button type="button" className="button" disabled={!hasPrevious} onClick={onPrevious}>
            Previous <kbd>p</kbd>
          </button>
        </div>
        {!(mayJudge && mayReview) && <p className="soft">Your role can read the queue, and not judge.</p>}
      </div>
    </section>
  );
}

function useDigits(choose: (digit: string) => void) {
  const latest = useRef(choose);
  useEffect(() => {
    latest.current = choose;
  });

  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if (!(DIGITS as readonly string[]).includes(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
      if ((event.target as Element).closest("input, textarea, select, [contenteditable], dialog")) return;
      event.preventDefault();
      latest.current(event.key);
    };

    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, []);
}

interface QuestionProps {
  item: RubricItem;
  config: FeedbackConfig | undefined;
  value: number | string | undefined;
  isActive: boolean;
  isDisabled: boolean;
  onAnswer: (value: number | string | undefined) => void;
}

function Question({ item, config, value, isActive, isDisabled, onAnswer }: QuestionProps) {
  const scale = config?.feedback_config;
  const choices = getChoices(scale);
  const isText = scale?.type === "freeform";

  return (
    <fieldset className={isActive ? "question active" : "question"} disabled={isDisabled}>
      <legend>
        {item.feedback_key}
        {item.is_required && <span className="soft"> required</span>}
      </legend>
      {item.description && <p className="soft">{item.description}</p>}
      {choices ? (
        <div className="scores">
          {choices.map((choice) => (
            <button
              key={choice.key}
              type="button"
              className="score"
              aria-pressed={value === choice.value}
              title={item.score_descriptions?.[choice.label]}
              onClick={() => onAnswer(value === choice.value ? undefined : choice.value)}
            >
              {choice.label}
              {choice.label !== choice.key && <kbd>{choice.key}</kbd>}
            </button>
          ))}
        </div>
      ) : (
        <input
          aria-label={item.feedback_key}
          inputMode={isText ? "text" : "decimal"}
          placeholder={isText ? "" : `${scale?.min ?? ""} … ${scale?.max ?? ""}`}
          value={String(value ?? "")}
          onChange={(event) => onAnswer(event.target.value || undefined)}
        />
      )}
    </fieldset>
  );
}

function findScale(configs: FeedbackConfig[] | undefined, item: RubricItem) {
  return configs?.find((each) => each.feedback_key === item.feedback_key)?.feedback_config;
}

// Whether the person of this session gave the feedback. Another answer of theirs then changes it.
function isOwn(feedback: Feedback, userId: string | null): boolean {
  const source = feedback.feedback_source as { type?: string; user_id?: string | null } | null;
  return source?.type === "app" && (source.user_id ?? null) === userId;
}

function toAnswers(own: Feedback[]): Answers {
  const answers: Answers = {};
  for (const each of own.toReversed()) {
    if (each.key === NOTE) answers[NOTE] = String(each.comment ?? "");
    else if (typeof each.score === "number") answers[each.key] = each.score;
    else if (typeof each.value === "string") answers[each.key] = each.value;
  }

  return answers;
}

async function store(runId: string, answers: Answers, changes: Answers, own: Feedback[], texts: string[]) {
  for (const key of Object.keys(changes)) {
    const value = answers[key];
    const old = own.find((each) => each.key === key);
    if (isEmpty(value)) {
      if (old) await call("DELETE /feedback/{feedback_id}", { path: { feedback_id: old.id } });
      continue;
    }

    const number = typeof value === "number" ? value : texts.includes(key) ? Number.NaN : Number(value);
    const said =
      key === NOTE
        ? { comment: String(value) }
        : Number.isFinite(number)
          ? { score: number }
          : { value: String(value) };

    if (old) await call("PATCH /feedback/{feedback_id}", { path: { feedback_id: old.id }, body: said });
    else await call("POST /feedback", { body: { run_id: runId, key, ...said, feedback_source: { type: "app" } } });
  }
}

function isEmpty(value: number | string | undefined): boolean {
  return value === undefined || (typeof value === "string" && !value.trim());
}
