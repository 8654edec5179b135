import { type FormEvent, useState } from "react";
import type { Commit, CommitTag } from "../../api/platform";
import { useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Icon } from "../../ui/Icon";
import { OWN } from "./usePrompt";

interface Props {
  handle: string;
  commit: Commit;
  tags: CommitTag[];
  all: CommitTag[];
}

// The tags of a commit. A tag that is on another commit moves to this one.
export function CommitTags({ handle, commit, tags, all }: Props) {
  const mayUpdate = useMay("prompts:update");
  const [name, setName] = useState("");

  const path = { owner: OWN, repo: handle };
  const set = useChange("POST /repos/{owner}/{repo}/tags", () => setName(""));
  const remove = useChange("DELETE /repos/{owner}/{repo}/tags/{tag_name}");

  const other = all.find((tag) => tag.tag_name === name.trim() && tag.commit_id !== commit.id);
  const error = set.error ?? remove.error;
  if (!mayUpdate && tags.length === 0) return null;

  const submit = (event: FormEvent) => {
    event.preventDefault();
    set.mutate({ path, body: { tag_name: name.trim(), commit_id: commit.id } });
  };

  return (
    <form className="commit-tags" onSubmit={submit}>
      <span className="soft">Tags</span>
      {tags.map((tag) => (
        <span key={tag.id} className="label">
          {tag.tag_name}
          {mayUpdate && (
            <button
              type="button"
              className="copy"
              aria-label={`Remove the tag ${tag.tag_name}`}
              onClick={() => remove.mutate({ path: { ...path, tag_name: tag.tag_name } })}
            >
              <Icon name="close" />
            </button>
          )}
        </span>
      ))}
      {mayUpdate && (
        <>
          <input
            aria-label="Tag for this commit"
            placeholder="production"
            spellCheck={false}
            list="known-tags"
            value={name}
            onChange={(event) => setName(event.target.value)}
          />
          <datalist id="known-tags">
            {all.map((tag) => (
              <option key={tag.id} value={tag.tag_name} />
            ))}
          </datalist>
          <button type="submit" className="button" disabled={!name.trim() || set.isPending}>
            {other ? `Move from ${other.commit_hash.slice(0, 8)}` : "Set tag"}
          </button>
        </>
      )}
      {error && (
        <p className="bad-text" role="alert">
          {error.message}
        </p>
      )}
    </form>
  );
}
