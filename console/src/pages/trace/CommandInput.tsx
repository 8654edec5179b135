// The input of a run that goes on after a question: the command of LangGraph, as what a person said and changed.

import { isBranch, Json, LongText } from "../../ui/Json";
import { Chat } from "./Chat";
import { findMessages } from "./messages";

interface Command {
  resume: unknown;
  update: unknown;
  goto: unknown[];
}

const FIELDS = ["goto", "graph", "resume", "update"];
// Answers by the id of their question; all other values of `resume` answer the one question that is open.
const QUESTION_ID = /^[0-9a-f]{32}$/;

/** The command in the input of a run, as LangGraph traces it; null for any other input. */
export function parseCommand(inputs: unknown): Command | null {
  const command = isBranch(inputs) && Object.keys(inputs).length === 1 && (inputs as { input?: unknown }).input;
  if (!isBranch(command) || Object.keys(command).toSorted().join() !== FIELDS.join()) return null;
  const { resume, update, goto } = command as Record<string, unknown>;
  return { resume, update, goto: Array.isArray(goto) ? goto : [goto] };
}

export function CommandInput({ command: { resume, update, goto } }: { command: Command }) {
  const answers = isBranch(resume) ? Object.entries(resume) : [];
  const isById = answers.length > 0 && answers.every(([id]) => QUESTION_ID.test(id));
  const places = goto.filter((place) => place !== null && place !== "");

  return (
    <dl className="resume">
      {isById &&
        answers.map(([id, answer]) => (
          <Part key={id} title={`Answer to question ${id.slice(-8)}`} value={answer} name="answer" />
        ))}
      {!isById && resume !== null && <Part title="Answer" value={resume} name="answer" />}
      {update !== null && <Part title="Change of the state" value={update} name="update" />}
      {places.length > 0 && <Part title="Continues at" value={places.map(String).join(", ")} name="goto" />}
    </dl>
  );
}

function Part({ title, value, name }: { title: string; value: unknown; name: string }) {
  const messages = findMessages(value);

  return (
    <>
      <dt>{title}</dt>
      <dd>
        {messages && <Chat messages={messages} />}
        {!messages && isBranch(value) && <Json value={value} name={name} open={2} />}
        {!messages && !isBranch(value) && <LongText text={String(value)} name={name} />}
      </dd>
    </>
  );
}
