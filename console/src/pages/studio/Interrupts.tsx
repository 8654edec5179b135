import { useId, useState } from "react";
import type { StateInterrupt } from "../../api/agentServer";
import { ShortId } from "../../ui/Copy";
import { Field } from "../../ui/Field";
import { Icon } from "../../ui/Icon";
import { Json } from "../../ui/Json";
import { Markdown } from "../../ui/Markdown";
import { JsonInput } from "../../ui/SchemaForm";
import { type ActionRequest, type Answer, type Decision, parseQuestion, resumeValue } from "./interrupts";

const WORDS: Record<Decision, string> = {
  approve: "Approve",
  edit: "Edit",
  reject: "Reject",
  respond: "Respond",
  ignore: "Ignore",
};

interface Props {
  interrupts: StateInterrupt[];
  isSending: boolean;
  // Continues the run with the answers, by the ids of their questions.
  onAnswer: (resume: Record<string, unknown>) => void;
}

/** All questions that a thread waits with. Those that are answered go together; the others stay. */
export function Interrupts({ interrupts, isSending, onAnswer }: Props) {
  const [answers, setAnswers] = useState<Record<string, unknown>>({});
  const complete = interrupts.filter((each) => answers[each.id] !== undefined);
  const set = (id: string, answer: unknown) => setAnswers((old) => ({ ...old, [id]: answer }));
  const send = () => onAnswer(Object.fromEntries(complete.map((each) => [each.id, answers[each.id]])));

  return (
    <section className="interrupts" aria-label="Questions">
      {interrupts.map((each) => (
        <Question key={each.id} interrupt={each} onChange={(answer) => set(each.id, answer)} />
      ))}
      <div className="row">
        <button type="button" className="button main" disabled={complete.length === 0 || isSending} onClick={send}>
          <Icon name="play" />
          {interrupts.length === 1 ? "Send the answer" : `Send ${complete.length} of ${interrupts.length} answers`}
        </button>
        <span className="soft small">The run goes on from where it stopped.</span>
      </div>
    </section>
  );
}

function Question({ interrupt, onChange }: { interrupt: StateInterrupt; onChange: (answer: unknown) => void }) {
  const question = parseQuestion(interrupt.value);
  const [decided, setDecided] = useState<(Answer | undefined)[]>([]);

  const decide = (index: number, answer: Answer | undefined) => {
    const next = question.actions.map((_, at) => (at === index ? answer : decided[at]));
    setDecided(next);
    onChange(next.every((each) => each !== undefined) ? resumeValue(question, next as Answer[]) : undefined);
  };

  return (
    <article className="card interrupt" aria-label="Question">
      <div className="card-head">
        <h3>
          <Icon name="pause" /> Waits for a person
        </h3>
        <ShortId id={interrupt.id} what="interrupt id" />
      </div>
      {question.form === "free" ? (
        <FreeQuestion value={interrupt.value} onChange={onChange} />
      ) : (
        question.actions.map((action, index) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: the requests of one question keep their order
          <Action key={index} action={action} onChange={(answer) => decide(index, answer)} />
        ))
      )}
    </article>
  );
}

function FreeQuestion({ value, onChange }: { value: unknown; onChange: (answer: unknown) => void }) {
  const [isJson, setJson] = useState(false);
  const [choice, setChoice] = useState<boolean | null>(null);
  const [answer, setAnswer] = useState("");
  const group = useId();

  const text = toText(value);

  const choose = (next: boolean) => {
    setChoice(next);
    setAnswer("");
    onChange(next);
  };

  const type = (next: string) => {
    setChoice(null);
    setAnswer(next);
    onChange(next === "" ? undefined : next);
  };

  return (
    <div className="card-body stack">
      {text !== undefined ? <Markdown text={text} /> : <Json value={value} name="question" open={3} />}
      {isJson ? (
        <JsonInput label="Answer as JSON" value={undefined} onChange={onChange} />
      ) : (
        <>
          <fieldset className="decisions">
            <legend className="hidden">Yes or no</legend>
            {[true, false].map((each) => (
              <label
                key={String(each)}
                className={choice === each ? "decision chosen" : "decision"}
                title={`Sent as ${each}`}
              >
                <input type="radio" name={group} checked={choice === each} onChange={() => choose(each)} />
                {each ? "Yes" : "No"}
              </label>
            ))}
          </fieldset>
          <Field label="Answer">
            {(attributes) => (
              <textarea
                {...attributes}
                rows={2}
                dir="auto"
                value={answer}
                onChange={(event) => type(event.target.value)}
              />
            )}
          </Field>
        </>
      )}
      <button
        type="button"
        className="link small left"
        onClick={() => {
          type("");
          setJson(!isJson);
        }}
      >
        {isJson ? "Answer with a text" : "Answer with JSON"}
      </button>
    </div>
  );
}

function Action({ action, onChange }: { action: ActionRequest; onChange: (answer: Answer | undefined) => void }) {
  const [decision, setDecision] = useState<Decision | null>(null);
  const group = useId();

  const choose = (next: Decision) => {
    setDecision(next);
    if (next === "edit") onChange({ decision: next, args: action.args });
    else onChange(next === "respond" ? undefined : { decision: next });
  };

  return (
    <div className="card-body stack">
      {action.description && <Markdown text={action.description} />}
      <div className="tool-call-head">
        <Icon name="tool" />
        <code>{action.name}</code>
      </div>
      {decision === "edit" ? (
        <JsonInput
          label={`Arguments of ${action.name}`}
          value={action.args}
          onChange={(args) => onChange(args === undefined ? undefined : { decision: "edit", args })}
        />
      ) : (
        <Json value={action.args} name={`${action.name}-arguments`} open={2} />
      )}
      <fieldset className="decisions">
        <legend className="hidden">Decision about {action.name}</legend>
        {action.allowed.map((each) => (
          <label key={each} className={decision === each ? "decision chosen" : "decision"}>
            <input type="radio" name={group} checked={decision === each} onChange={() => choose(each)} />
            {WORDS[each] ?? each}
          </label>
        ))}
      </fieldset>
      {(decision === "reject" || decision === "respond") && (
        <Field
          label={decision === "reject" ? "Why (the agent reads it)" : "Response"}
          isRequired={decision === "respond"}
        >
          {(attributes) => (
            <textarea
              {...attributes}
              rows={2}
              onChange={(event) => {
                const text = event.target.value;
                onChange(decision === "respond" && !text ? undefined : { decision, text });
              }}
            />
          )}
        </Field>
      )}
    </div>
  );
}

// A question is often a text alone, or an object with nothing but a text.
function toText(value: unknown): string | undefined {
  if (typeof value === "string") return value;
  if (typeof value !== "object" || value === null || Array.isArray(value)) return undefined;
  const [only, ...others] = Object.values(value);
  return typeof only === "string" && others.length === 0 ? only : undefined;
}
