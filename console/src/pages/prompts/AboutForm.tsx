import { useState } from "react";
import type { Prompt } from "../../api/platform";
import { useChange } from "../../api/queries";
import { Field, TextField } from "../../ui/Field";
import { Form, FormButtons } from "../../ui/Form";
import { OWN } from "./usePrompt";

// What people read about a prompt, and who sees it.
export function AboutForm({ prompt, onClose }: { prompt: Prompt; onClose: () => void }) {
  const [draft, setDraft] = useState({
    description: prompt.description,
    readme: prompt.readme,
    tags: prompt.tags.join(", "),
    isPublic: prompt.is_public,
    isArchived: prompt.is_archived,
  });

  const set = (changes: Partial<typeof draft>) => setDraft((old) => ({ ...old, ...changes }));
  const change = useChange("PATCH /repos/{owner}/{repo}", onClose);

  const save = () => {
    const tags = draft.tags.split(",").map((tag) => tag.trim());
    change.mutate({
      path: { owner: OWN, repo: prompt.repo_handle },
      body: {
        description: draft.description,
        readme: draft.readme,
        tags: tags.filter(Boolean),
        is_public: draft.isPublic,
        is_archived: draft.isArchived,
      },
    });
  };

  return (
    <Form change={change} onSubmit={save}>
      <TextField
        label="Description"
        spellCheck
        value={draft.description}
        onChange={(text) => set({ description: text })}
      />
      <TextField
        label="Labels"
        hint="Separated by commas."
        value={draft.tags}
        onChange={(text) => set({ tags: text })}
      />
      <Field label="README" hint="Markdown.">
        {(attributes) => (
          <textarea
            {...attributes}
            rows={10}
            value={draft.readme}
            onChange={(event) => set({ readme: event.target.value })}
          />
        )}
      </Field>
      <label className="check">
        <input type="checkbox" checked={draft.isPublic} onChange={(event) => set({ isPublic: event.target.checked })} />
        Public: every workspace of this installation can read it
      </label>
      <label className="check">
        <input
          type="checkbox"
          checked={draft.isArchived}
          onChange={(event) => set({ isArchived: event.target.checked })}
        />
        Archived: not in the list, and still served
      </label>
      <FormButtons action="Save" onCancel={onClose} />
    </Form>
  );
}
