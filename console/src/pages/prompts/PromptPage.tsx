import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import type { Commit, CommitTag, Prompt } from "../../api/platform";
import { useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Confirm } from "../../ui/Confirm";
import { Command } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { count } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { Json } from "../../ui/Json";
import { Markdown } from "../../ui/Markdown";
import { Problem } from "../../ui/Problem";
import { Tabs } from "../../ui/Tabs";
import { Ago } from "../../ui/Time";
import { AboutForm } from "./AboutForm";
import { CommitForm } from "./CommitForm";
import { CommitTags } from "./CommitTags";
import { lineDiff } from "./lineDiff";
import { displayText, readManifest, toLines } from "./manifest";
import { OWN, useCommit, usePrompt } from "./usePrompt";

const promptRoute = getRouteApi("/prompts/$promptName");

const VIEWS = [
  ["messages", "Messages"],
  ["diff", "Changes"],
  ["json", "JSON"],
  ["about", "About"],
] as const;

type View = (typeof VIEWS)[number][0];

export function PromptPage() {
  const { promptName } = promptRoute.useParams();
  const { view, commit: chosen, against, edit } = promptRoute.useSearch();
  const navigate = useNavigate();
  const mayUpdate = useMay("prompts:update");
  const { prompt: query, commits, tags } = usePrompt(promptName);

  const list = commits.rows;
  const commit = chosen ? findCommit(list, chosen) : list[0];
  const base = against ?? commit?.parent_commit_hash ?? undefined;

  // The address, or the oldest commit of the list, may name a commit of a page that is not read yet.
  const isMissing = (chosen && !commit) || (view === "diff" && base && !findCommit(list, base));
  const isLooking = Boolean(isMissing) && commits.hasMore && commits.error === null;
  const { loadMore } = commits;

  // biome-ignore lint/correctness/useExhaustiveDependencies: each page that has no such commit asks for the next one
  useEffect(() => {
    if (isLooking) loadMore();
  }, [isLooking, loadMore, list.length]);
  const show = (search: Record<string, string | undefined>) =>
    void navigate({ to: "/prompts/$promptName", params: { promptName }, search: (old) => ({ ...old, ...search }) });

  const error = query.error ?? commits.error ?? tags.error;
  if (!query.data || !commits.isRead) {
    return error ? (
      <div className="page">
        <Problem error={error} retry={() => void query.refetch()} />
      </div>
    ) : null;
  }

  const prompt = query.data.repo;
  const isEditing = edit !== undefined && mayUpdate;
  const tab = isEditing ? "messages" : ((view ?? (list.length ? "messages" : "about")) as View);

  return (
    <div className="page full">
      <Head prompt={prompt} onEdit={() => show({ edit: "yes", view: undefined })} isEditing={isEditing} />
      <div className="thread prompt">
        <section className="card" aria-label="Commits">
          <h2>
            Commits <span className="soft">{count(prompt.num_commits)}</span>
          </h2>
          {list.length === 0 && <p className="card-body soft">None yet.</p>}
          <ul className="timeline-body">
            {list.map((each) => (
              <CommitRow
                key={each.id}
                commit={each}
                tags={(tags.data ?? []).filter((tag) => tag.commit_id === each.id)}
                isLatest={each === list[0]}
                isChosen={each === commit}
                onChoose={() => show({ commit: each.commit_hash.slice(0, 8), against: undefined, edit: undefined })}
              />
            ))}
          </ul>
          {commits.hasMore && (
            <p className="card-body">
              <button type="button" className="link" disabled={commits.isReadingMore} onClick={commits.loadMore}>
                Older commits
              </button>
            </p>
          )}
          {commits.error && <Problem error={commits.error} retry={commits.retry} />}
        </section>
        <section className="card thread-state" aria-label="Prompt">
          {!isEditing && (
            <Tabs label="Views" tabs={VIEWS} selected={tab} search={(next, old) => ({ ...old, view: next })} />
          )}
          <div className="card-body">
            {isEditing ? (
              <CommitForm
                handle={promptName}
                latest={list[0]}
                from={commit}
                onClose={() => show({ edit: undefined })}
                onDone={() => show({ edit: undefined, commit: undefined })}
              />
            ) : tab === "about" ? (
              <About prompt={prompt} mayUpdate={mayUpdate} />
            ) : isLooking ? (
              <p className="soft" role="status">
                Looking for the commit among the older ones…
              </p>
            ) : commit === undefined ? (
              <Empty title={chosen ? "There is no such commit" : "No commit yet"}>
                {chosen ? "Choose one of the list." : "“New version” writes the first one."}
              </Empty>
            ) : (
              <>
                <CommitTags
                  handle={promptName}
                  commit={commit}
                  tags={(tags.data ?? []).filter((tag) => tag.commit_id === commit.id)}
                  all={tags.data ?? []}
                />
                <CommitView
                  prompt={prompt}
                  commit={commit}
                  view={tab}
                  against={base}
                  others={list.filter((each) => each !== commit)}
                  onCompare={(hash) => show({ view: "diff", against: hash })}
                />
              </>
            )}
          </div>
        </section>
      </div>
    </div>
  );
}

function findCommit(commits: Commit[], hash: string): Commit | undefined {
  return commits.find((each) => each.commit_hash.startsWith(hash));
}

function Head({ prompt, isEditing, onEdit }: { prompt: Prompt; isEditing: boolean; onEdit: () => void }) {
  const navigate = useNavigate();
  const mayUpdate = useMay("prompts:update");
  const mayDelete = useMay("prompts:delete");
  const [isAsking, setAsking] = useState(false);

  const path = { owner: OWN, repo: prompt.repo_handle };
  const remove = useChange("DELETE /repos/{owner}/{repo}", () => void navigate({ to: "/prompts" }));

  return (
    <div className="head">
      <div>
        <div className="row">
          <h1>{prompt.repo_handle}</h1>
          {prompt.is_public && <span className="label">public</span>}
          {prompt.is_archived && <span className="label">archived</span>}
        </div>
        {prompt.description && <p className="soft">{prompt.description}</p>}
      </div>
      <div className="row">
        {mayUpdate && !isEditing && (
          <button type="button" className="button main" onClick={onEdit}>
            <Icon name="edit" />
            New version
          </button>
        )}
        {mayDelete && (
          <button type="button" className="button danger" onClick={() => setAsking(true)}>
            <Icon name="trash" />
            Delete
          </button>
        )}
      </div>
      {isAsking && (
        <Confirm
          title={`Delete ${prompt.repo_handle}?`}
          action="Delete for good"
          change={remove}
          onConfirm={() => remove.mutate({ path })}
          onClose={() => setAsking(false)}
        >
          <p>
            All {prompt.num_commits} commits and all tags are deleted; agents that pull this prompt get an error.
            Archive it instead to only hide it from the list.
          </p>
        </Confirm>
      )}
    </div>
  );
}

interface RowProps {
  commit: Commit;
  tags: CommitTag[];
  isLatest: boolean;
  isChosen: boolean;
  onChoose: () => void;
}

function CommitRow({ commit, tags, isLatest, isChosen, onChoose }: RowProps) {
  return (
    <li>
      <button type="button" className="commit" aria-current={isChosen} onClick={onChoose}>
        <span className="row spread">
          <code>{commit.commit_hash.slice(0, 8)}</code>
          <span className="soft">
            <Ago at={commit.created_at} />
          </span>
        </span>
        {commit.description && <span>{commit.description}</span>}
        {(isLatest || tags.length > 0) && (
          <span className="labels">
            {isLatest && <span className="label">latest</span>}
            {tags.map((tag) => (
              <span key={tag.id} className="label">
                {tag.tag_name}
              </span>
            ))}
          </span>
        )}
      </button>
    </li>
  );
}

interface CommitProps {
  prompt: Prompt;
  commit: Commit;
  view: View;
  against: string | undefined;
  others: Commit[];
  onCompare: (hash: string) => void;
}

function CommitView({ prompt, commit, view, against, others, onCompare }: CommitProps) {
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

function About({ prompt, mayUpdate }: { prompt: Prompt; mayUpdate: boolean }) {
  const [isEditing, setEditing] = useState(false);
  if (isEditing) return <AboutForm prompt={prompt} onClose={() => setEditing(false)} />;

  return (
    <div className="stack">
      <dl className="facts">
        <div>
          <dt>Full name</dt>
          <dd>{prompt.full_name}</dd>
        </div>
        <div>
          <dt>Pulled</dt>
          <dd>{prompt.num_downloads} times</dd>
        </div>
        <div>
          <dt>Created</dt>
          <dd>
            <Ago at={prompt.created_at} />
          </dd>
        </div>
      </dl>
      {prompt.tags.length > 0 && (
        <div className="labels">
          {prompt.tags.map((tag) => (
            <Link key={tag} to="/prompts" search={(old) => ({ ...old, q: tag })} className="label">
              {tag}
            </Link>
          ))}
        </div>
      )}
      {prompt.readme ? <Markdown text={prompt.readme} /> : <p className="soft">No README yet.</p>}
      {mayUpdate && (
        <div>
          <button type="button" className="button" onClick={() => setEditing(true)}>
            <Icon name="edit" />
            Edit
          </button>
        </div>
      )}
    </div>
  );
}
