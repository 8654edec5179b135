import { useState } from "react";
import type { KeyRequest, NewKey } from "../../api/platform";
import { useChange } from "../../api/queries";
import { useMay, useSession } from "../../shell/session";
import { CopyButton } from "../../ui/Copy";
import { SelectField, TextField } from "../../ui/Field";
import { CardForm, FormButtons } from "../../ui/Form";
import { Icon } from "../../ui/Icon";
import { useGrantable, useRoles } from "./roles";

const LIFETIMES: [string, string][] = [
  ["7", "7 days"],
  ["30", "30 days"],
  ["90", "90 days"],
  ["365", "a year"],
  ["", "never"],
];

const DAY_MS = 86_400_000;
type Kind = "organization" | "personal" | "workspace";

// A key for a program or a colleague. It is shown once, with what a client needs beside it.
export function NewKeyForm({ onClose }: { onClose: () => void }) {
  const { workspace, identity } = useSession();
  const kinds = useKinds();
  const roles = useGrantable(useRoles().workspace);
  const [draft, setDraft] = useState({ kind: kinds[0]?.[0], name: "", role: "Editor", days: "90", isReadOnly: false });
  const [newKey, setNewKey] = useState<NewKey | null>(null);

  const set = (changes: Partial<typeof draft>) => setDraft((old) => ({ ...old, ...changes }));
  const ofWorkspace = useChange("POST /api-key", setNewKey);
  const own = useChange("POST /api-key/current", setNewKey);
  const ofOrganization = useChange("POST /orgs/current/service-keys", setNewKey);

  const change = { workspace: ofWorkspace, personal: own, organization: ofOrganization }[draft.kind ?? "workspace"];

  if (newKey) return <NewKeyCard made={newKey} onClose={onClose} />;

  return (
    <CardForm
      title="New key"
      change={change}
      onSubmit={() => change.mutate({ body: toBody(draft, workspace?.id ?? null) })}
    >
      <div className="fields two">
        <TextField
          label="What or whom it is for"
          hint="Everybody reads this in the list."
          isRequired
          maxLength={1000}
          placeholder="nightly import, or a colleague"
          autoFocus
          value={draft.name}
          onChange={(text) => set({ name: text })}
        />
        <SelectField
          label="Acts as"
          value={draft.kind ?? "workspace"}
          onChange={(kind) => set({ kind })}
          options={kinds.map(
            ([kind, title]) =>
              [kind, title(workspace?.display_name ?? "the workspace", identity.user_email ?? "me")] as const,
          )}
        />
        {draft.kind !== "personal" && (
          <SelectField
            label="Role"
            hint="No key may do more than the person who makes it."
            value={draft.role}
            onChange={(value) => set({ role: value })}
            options={roles.map((role) => [role.display_name, role.display_name] as const)}
          />
        )}
        <SelectField
          label="Expires after"
          value={draft.days}
          onChange={(value) => set({ days: value })}
          options={LIFETIMES}
        />
      </div>
      <label className="check">
        <input
          type="checkbox"
          checked={draft.isReadOnly}
          onChange={(event) => set({ isReadOnly: event.target.checked })}
        />
        Reads only
      </label>
      <FormButtons action="Create" isDisabled={!draft.name.trim()} onCancel={onClose} />
    </CardForm>
  );
}

type Title = (workspace: string, person: string) => string;

// The kinds of keys that the caller may make, the usual one first.
function useKinds(): [Kind, Title][] {
  const { identity, workspace } = useSession();
  const isOfWorkspace = useMay("workspaces:manage") && workspace !== null;
  const isOfOrganization = useMay("organization:manage");
  const isOwn = useMay("organization:pats:create") && identity.user_id !== null;

  const kinds: [boolean, Kind, Title][] = [
    [isOfWorkspace, "workspace", (name) => `itself, in ${name}`],
    [isOfOrganization, "organization", () => "itself, in all workspaces"],
    [isOwn, "personal", (_, person) => `me (${person})`],
  ];

  return kinds.filter(([isAllowed]) => isAllowed).map(([, kind, title]) => [kind, title]);
}

interface Draft {
  kind: Kind | undefined;
  name: string;
  role: string;
  days: string;
  isReadOnly: boolean;
}

function toBody({ kind, name, role, days, isReadOnly }: Draft, workspaceId: string | null): KeyRequest {
  const body: KeyRequest = { description: name.trim(), read_only: isReadOnly };
  if (days) body.expires_at = new Date(Date.now() + Number(days) * DAY_MS).toISOString();
  if (kind === "personal") return workspaceId ? { ...body, default_workspace_id: workspaceId } : body;
  return { ...body, role_id: role };
}

function NewKeyCard({ made: newKey, onClose }: { made: NewKey; onClose: () => void }) {
  const variables = `LANGSMITH_ENDPOINT=${location.origin}\nLANGSMITH_API_KEY=${newKey.key}`;

  return (
    <section className="card" aria-label="The new key">
      <div className="card-head">
        <h2>{newKey.description}</h2>
        <button type="button" className="copy" aria-label="Close" onClick={onClose}>
          <Icon name="close" />
        </button>
      </div>
      <div className="card-body fields">
        <p>Copy it now: it is stored as a hash, and nobody can read it again.</p>
        <div className="once">
          <code data-testid="new-key">{newKey.key}</code>
          <CopyButton text={newKey.key} what="key" />
        </div>
        <div>
          <p className="soft">For SDKs and the command line, as environment variables:</p>
          <div className="once">
            <pre>{variables}</pre>
            <CopyButton text={variables} what="variables" />
          </div>
        </div>
        <div>
          <button type="button" className="button" onClick={onClose}>
            Done
          </button>
        </div>
      </div>
    </section>
  );
}
