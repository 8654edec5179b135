import type { Commit, Prompt } from "../../api/platform";
import { Command } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { Json } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { lineDiff } from "./lineDiff";
import { displayText, readManifest, toLines } from "./manifest";
import { findCommit, useCommit } from "./usePrompt";

interface CommitProps {
  prompt: Prompt;
  commit: Commit;
  view: "messages" | "diff" | "json";
  against: string | undefined;
  others: Commit[];
  onCompare: (hash: string) => void;
}

// One commit: its messages, what it changed, or its JSON.
export function CommitView({ prompt, commit, view, against, others, onCompare }: CommitProps) {
  const after = useCommit(prompt.repo_handle, commit.commit_hash);
  const compared = against === undefined ? undefined : findCommit(others, against);
  const before = useCommit(prompt.repo_handle, view === "diff" ? compared?.commit_hash : undefined);

  const error = after.error ?? before.error;
  if (error) return <Problem error={error} />;
  if (!after.data || (view === "diff" && compared && !before.data)) return null;
  const { manifest } = after.data;
  if (view === "json") return <Json value={manifest} name={prompt.repo_handle} open={2} />;
  if (view === "messages") return <Messages manifest={manifest} prompt={prompt} commit={commit} />;

  return (
    <div className="stack">
      <label className="row">
        <span className="soft">What changed since</span>
        <select
          aria-label="Compare with"
          value={compared?.commit_hash.slice(0, 8) ?? ""}
          onChange={(event) => onCompare(event.target.value)}
        >
          {!compared && <option value="">nothing</option>}
          {others.map((each) => (
            <option key={each.id} value={each.commit_hash.slice(0, 8)}>
              {each.commit_hash.slice(0, 8)} {each.description}
            </option>
          ))}
        </select>
      </label>
      <Changes before={before.data ? toLines(before.data.manifest) : []} after={toLines(manifest)} />
    </div>
  );
}

function Changes({ before, after }: { before: string[]; after: string[] }) {
  const lines = lineDiff(before, after);
  if (lines.every((line) => line.kind === "same")) {
    return <Empty title="Nothing changed">Both commits have the same messages; their JSON may differ.</Empty>;
  }

  const signs = { added: "+", removed: "−", same: " " };

  return (
    <section className="lines" aria-label="Changes">
      {lines.map((line, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: lines have no other identity, and the list is made as a whole
        <div key={index} className={`line ${line.kind}`}>
          <span className="sign">
            <span aria-hidden="true">{signs[line.kind]}</span>
            {line.kind !== "same" && <span className="hidden">{line.kind}</span>}
          </span>
          <span>{line.text || " "}</span>
        </div>
      ))}
    </section>
  );
}

function Messages({ manifest, prompt, commit }: { manifest: unknown; prompt: Prompt; commit: Commit }) {
  const content = readManifest(manifest);
  if (content === null) {
    return (
      <div className="stack">
        <p className="soft">This is not a prompt of messages, so that it is shown as it is stored.</p>
        <Json value={manifest} name={prompt.repo_handle} open={2} />
      </div>
    );
  }

  const pull = `Client().pull_prompt("${prompt.repo_handle}:${commit.commit_hash.slice(0, 8)}")`;

  return (
    <div className="stack">
      <ol className="prompt-messages" aria-label="Messages">
        {content.messages.map((message) => (
          <li key={message.key} className={`prompt-message of-${message.role}`}>
            <span className="chat-role">{message.role}</span>
            {message.role === "placeholder" ? (
              <p>
                The messages of <code className="variable">{message.text}</code>
              </p>
            ) : (
              <pre>
                <Highlighted text={displayText(message)} variables={content.variables} />
              </pre>
            )}
          </li>
        ))}
      </ol>
      {content.model !== null && (
        <details>
          <summary>Model</summary>
          <Json value={content.model} name="model" open={2} />
        </details>
      )}
      <div className="row">
        <span className="soft">Variables</span>
        {content.variables.length === 0 && <span>none</span>}
        {content.variables.map((name) => (
          <code key={name} className="label">
            {name}
          </code>
        ))}
      </div>
      <div>
        <Command text={pull} />
      </div>
    </div>
  );
}

// The text with its variables marked, where they stand between braces.
function Highlighted({ text, variables }: { text: string; variables: string[] }) {
  const parts = text.split(/(\{+\s*[\w.]+\s*\}+)/);

  return parts.map((part, index) => {
    const isVariable = variables.includes(part.replace(/[{}\s]/g, "")) && part.startsWith("{");
    // biome-ignore lint/suspicious/noArrayIndexKey: parts of one text, made as a whole
    return isVariable ? <mark key={index}>{part}</mark> : part;
  });
}
