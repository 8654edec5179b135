import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import type { Commit, CommitTag, Prompt } from "../../api/platform";
import { useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Confirm } from "../../ui/Confirm";
import { Empty } from "../../ui/Empty";
import { count } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";
import { Tabs } from "../../ui/Tabs";
import { Ago } from "../../ui/Time";
import { About } from "./About";
import { CommitForm } from "./CommitForm";
import { CommitTags } from "./CommitTags";
import { CommitView } from "./CommitView";
import { findCommit, OWN, usePrompt } from "./usePrompt";

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
