import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import type { Integration, IntegrationCreate, PushWebhook } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Confirm } from "../../ui/Confirm";
import { CopyButton } from "../../ui/Copy";
import { Dialog } from "../../ui/Dialog";
import { Empty } from "../../ui/Empty";
import { SelectField, TextField } from "../../ui/Field";
import { CardForm, FormButtons } from "../../ui/Form";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";
import { Table, type TableColumn } from "../../ui/Table";

const gitTab = getRouteApi("/system/git");

const HOSTS: [IntegrationCreate["kind"], string][] = [
  ["github", "GitHub"],
  ["gitlab", "GitLab"],
  ["gitea", "Gitea or Forgejo"],
];

// Accounts at git hosts: for private repositories, lists of repositories, and deployments on push.
export function GitTab() {
  const { add } = gitTab.useSearch();
  const navigate = useNavigate();
  const mayUpdate = useMay("deployments:update");
  const query = useApi("GET /v1/integrations/git_hosting/install", {}, { enabled: useMay("deployments:read") });
  const [accountToRemove, setAccountToRemove] = useState<Integration | null>(null);

  // Plain git is built in: it needs no account and cannot be removed.
  const integrations = (query.data ?? []).filter((each) => each.kind !== "git");
  const isAdding = mayUpdate && add !== undefined;
  const removal: TableColumn<Integration> = {
    title: "Actions",
    isActions: true,
    show: (each) => (
      <button
        type="button"
        className="copy"
        aria-label={`Remove ${each.name}`}
        onClick={() => setAccountToRemove(each)}
      >
        <Icon name="trash" />
      </button>
    ),
  };

  return (
    <>
      {mayUpdate && !isAdding && (
        <div>
          <Link to="/system/git" search={(old) => ({ ...old, add: "yes" })} className="button main">
            <Icon name="plus" />
            Add an account
          </Link>
        </div>
      )}
      {isAdding && (
        <AddIntegration
          onClose={() => void navigate({ to: "/system/git", search: (old) => ({ ...old, add: undefined }) })}
        />
      )}
      {query.error && <Problem error={query.error} />}
      {query.data && integrations.length === 0 && !isAdding && (
        <Empty title="No git accounts">
          Public repositories need none. An account with a token opens private ones, lists what can be deployed, and
          builds on each push.
        </Empty>
      )}
      {integrations.length > 0 && (
        <section className="card" aria-label="Git accounts">
          <Table
            label="Git accounts"
            rows={integrations}
            getKey={(each) => each.id}
            isStacked
            columns={[
              { title: "Name", show: (each) => each.name },
              { title: "Host", show: (each) => <span title={each.kind}>{each.base_url ?? each.kind}</span> },
              { title: "Token", show: (each) => (each.has_token ? "set" : <span className="soft">none</span>) },
              { title: "Builds on push", show: (each) => <Webhook of={each} mayUpdate={mayUpdate} /> },
              ...(mayUpdate ? [removal] : []),
            ]}
          />
        </section>
      )}
      {accountToRemove && <RemoveIntegration of={accountToRemove} onClose={() => setAccountToRemove(null)} />}
    </>
  );
}

function AddIntegration({ onClose }: { onClose: () => void }) {
  const [draft, setDraft] = useState({ name: "", kind: "github" as IntegrationCreate["kind"], url: "", token: "" });
  const set = (changes: Partial<typeof draft>) => setDraft((old) => ({ ...old, ...changes }));
  const create = useChange("POST /v1/integrations/git_hosting", onClose);

  const add = () => {
    const { name, kind, url, token } = draft;
    create.mutate({ body: { name: name.trim(), kind, base_url: url.trim() || null, token: token || null } });
  };

  return (
    <CardForm title="Add an account" change={create} onSubmit={add}>
      <div className="fields two">
        <TextField
          label="Name"
          name="name"
          isRequired
          autoFocus
          placeholder="our-github"
          value={draft.name}
          onChange={(text) => set({ name: text })}
        />
        <SelectField label="Host" value={draft.kind} onChange={(value) => set({ kind: value })} options={HOSTS} />
        <TextField
          label="Address"
          name="base_url"
          hint={draft.kind === "gitea" ? "Of your server." : "Only for a server of your own."}
          isRequired={draft.kind === "gitea"}
          inputMode="url"
          placeholder="https://git.example.com"
          value={draft.url}
          onChange={(text) => set({ url: text })}
        />
        <TextField
          label="Token"
          name="token"
          hint="It may read repositories; it is sent to this host only."
          type="password"
          autoComplete="new-password"
          value={draft.token}
          onChange={(text) => set({ token: text })}
        />
      </div>
      <FormButtons action="Add" isDisabled={!draft.name.trim()} onCancel={onClose} />
    </CardForm>
  );
}

// The address that the host calls at a push. Its secret is shown once; another one replaces it.
function Webhook({ of: integration, mayUpdate }: { of: Integration; mayUpdate: boolean }) {
  const [webhook, setWebhook] = useState<PushWebhook | null>(null);
  const create = useChange("POST /v1/integrations/git_hosting/{integration_id}/webhook", setWebhook);

  return (
    <>
      {integration.has_webhook ? "has a webhook" : <span className="soft">by polling</span>}
      {mayUpdate && (
        <>
          {" · "}
          <button
            type="button"
            className="link"
            aria-label={`${integration.has_webhook ? "Replace" : "Create"} the webhook of ${integration.name}`}
            onClick={() => create.mutate({ path: { integration_id: integration.id } })}
          >
            {integration.has_webhook ? "Replace" : "Create a webhook"}
          </button>
        </>
      )}
      {create.error && (
        <p className="bad-text" role="alert">
          {create.error.message}
        </p>
      )}
      {webhook && (
        <Dialog title="Enter this at the git host" onClose={() => setWebhook(null)}>
          <p>The secret is shown once.</p>
          {[webhook.url, webhook.secret].map((text, index) => (
            <div key={text} className="once">
              <code>{text}</code>
              <CopyButton text={text} what={index ? "secret" : "address"} />
            </div>
          ))}
          <button type="button" className="button" onClick={() => setWebhook(null)}>
            Done
          </button>
        </Dialog>
      )}
    </>
  );
}

function RemoveIntegration({ of: integration, onClose }: { of: Integration; onClose: () => void }) {
  const remove = useChange("DELETE /v1/integrations/git_hosting/{integration_id}", onClose);

  return (
    <Confirm
      title={`Remove ${integration.name}?`}
      action="Remove"
      change={remove}
      onConfirm={() => remove.mutate({ path: { integration_id: integration.id } })}
      onClose={onClose}
    >
      <p>Its token and webhook are deleted. An account that a deployment uses cannot be removed.</p>
    </Confirm>
  );
}
