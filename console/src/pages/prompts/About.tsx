import { Link } from "@tanstack/react-router";
import { useState } from "react";
import type { Prompt } from "../../api/platform";
import { Icon } from "../../ui/Icon";
import { Markdown } from "../../ui/Markdown";
import { Ago } from "../../ui/Time";
import { AboutForm } from "./AboutForm";

// What a prompt is for, and who has used it.
export function About({ prompt, mayUpdate }: { prompt: Prompt; mayUpdate: boolean }) {
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
