import { useState } from "react";
import { useChange } from "../../api/queries";
import { useMay, useSession } from "../../shell/session";
import { CopyButton } from "../../ui/Copy";
import { Field, SelectField, TextField } from "../../ui/Field";
import { CardForm, FormButtons } from "../../ui/Form";
import { Icon } from "../../ui/Icon";
import { type Roles, useGrantable } from "./roles";

const PASSWORD_LETTERS = "abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";
const PASSWORD_LENGTH = 20;

export function AddMember({ roles, onClose }: { roles: Roles; onClose: () => void }) {
  const { workspace } = useSession();
  const mayManageWorkspace = useMay("workspaces:manage");
  const ofOrganization = useGrantable(roles.organization);
  const ofWorkspace = useGrantable(roles.workspace);

  const [draft, setDraft] = useState({
    email: "",
    name: "",
    password: "",
    role: "Organization User",
    inWorkspace: mayManageWorkspace ? "Editor" : "",
  });

  const [letter, setLetter] = useState<string | null>(null);
  const set = (changes: Partial<typeof draft>) => setDraft((old) => ({ ...old, ...changes }));
  const create = useChange("POST /orgs/current/members", (member) =>
    setLetter(writeLetter(member.email, draft.password)),
  );

  const add = () =>
    create.mutate({
      body: {
        email: draft.email.trim(),
        full_name: draft.name.trim() || null,
        password: draft.password || null,
        role_id: draft.role,
        ...(draft.inWorkspace && workspace ? { workspaces: [workspace.id], workspace_role: draft.inWorkspace } : {}),
      },
    });

  if (letter !== null) return <Letter text={letter} onClose={onClose} />;

  return (
    <CardForm title="Add a member" change={create} onSubmit={add}>
      <div className="fields two">
        <TextField
          label="E-mail"
          name="email"
          isRequired
          type="email"
          autoFocus
          value={draft.email}
          onChange={(text) => set({ email: text })}
        />
        <TextField label="Name" name="full_name" value={draft.name} onChange={(text) => set({ name: text })} />
        <SelectField
          label="Role in the organization"
          name="role_id"
          value={draft.role}
          onChange={(value) => set({ role: value })}
          options={ofOrganization.map((role) => [role.display_name, role.display_name] as const)}
        />
        {workspace && mayManageWorkspace && (
          <SelectField
            label={`Role in ${workspace.display_name}`}
            name="workspace_role"
            value={draft.inWorkspace}
            onChange={(value) => set({ inWorkspace: value })}
            options={[["", "no access"], ...ofWorkspace.map((role) => [role.display_name, role.display_name] as const)]}
          />
        )}
      </div>
      <Field
        label="First password"
        name="password"
        hint="At least 12 characters; leave it empty if people sign in at your provider."
      >
        {(attributes) => (
          <div className="with-button">
            <input
              {...attributes}
              className="mono"
              autoComplete="off"
              spellCheck={false}
              value={draft.password}
              onChange={(event) => set({ password: event.target.value })}
            />
            <button type="button" className="button" onClick={() => set({ password: randomPassword() })}>
              Generate
            </button>
          </div>
        )}
      </Field>
      <FormButtons action="Add" isDisabled={!draft.email.trim()} onCancel={onClose} />
    </CardForm>
  );
}

// What to send to the new member. The password is only here: nobody can read it later.
function Letter({ text, onClose }: { text: string; onClose: () => void }) {
  return (
    <section className="card" aria-label="The member is added">
      <div className="card-head">
        <h2>Added. Send this to them</h2>
        <button type="button" className="copy" aria-label="Close" onClick={onClose}>
          <Icon name="close" />
        </button>
      </div>
      <div className="card-body once">
        <pre>{text}</pre>
        <CopyButton text={text} what="text" />
      </div>
    </section>
  );
}

function writeLetter(email: string, password: string): string {
  const lines = [`${location.origin}/console/`, `E-mail: ${email}`];
  if (password) lines.push(`Password: ${password}`);
  return lines.join("\n");
}

function randomPassword(): string {
  const bytes = new Uint8Array(PASSWORD_LENGTH * 4);
  // Bytes beyond the largest multiple of the number of letters would make some letters likelier.
  const limit = 256 - (256 % PASSWORD_LETTERS.length);
  let password = "";
  while (password.length < PASSWORD_LENGTH) {
    for (const byte of crypto.getRandomValues(bytes)) {
      if (byte < limit && password.length < PASSWORD_LENGTH)
        password += PASSWORD_LETTERS[byte % PASSWORD_LETTERS.length];
    }
  }

  return password;
}
