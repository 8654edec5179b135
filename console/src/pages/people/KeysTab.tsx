import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import type { Key } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useMay, useSession } from "../../shell/session";
import { Confirm } from "../../ui/Confirm";
import { Command } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";
import { Table } from "../../ui/Table";
import { Ago, AgoOrNever } from "../../ui/Time";
import { NewKeyForm } from "./NewKey";

const keysTab = getRouteApi("/people/keys");

type Kind = "organization" | "personal" | "workspace";

interface Listed extends Key {
  kind: Kind;
}

export function KeysTab() {
  const { add } = keysTab.useSearch();
  const navigate = useNavigate();
  const { identity } = useSession();
  const mayManageAll = useMay("organization:manage");
  const mayManage = useMay("workspaces:manage");
  const mayMakeOwn = useMay("organization:pats:create") && identity.user_id !== null;
  const own = useApi("GET /api-key/current", {}, { enabled: useMay("organization:read") && identity.user_id !== null });

  const ofWorkspace = useApi("GET /api-key", {}, { enabled: useMay("workspaces:read") });
  const ofOrganization = useApi("GET /orgs/current/service-keys", {}, { enabled: mayManageAll });
  const [keyToRevoke, setKeyToRevoke] = useState<Listed | null>(null);

  const keys = merge(own.data ?? [], ofWorkspace.data ?? [], ofOrganization.data ?? []);
  const error = own.error ?? ofWorkspace.error ?? ofOrganization.error;
  const mayAdd = mayManage || mayMakeOwn || mayManageAll;

  const mayRevoke = (key: Listed) =>
    key.id !== identity.key_id &&
    { personal: mayMakeOwn, workspace: mayManage || mayManageAll, organization: mayManageAll }[key.kind];

  const isShowing = add !== undefined && mayAdd;

  return (
    <>
      {mayAdd && !isShowing && (
        <div>
          <Link to="/people/keys" search={(old) => ({ ...old, add: "yes" })} className="button main">
            <Icon name="plus" />
            New key
          </Link>
        </div>
      )}
      {isShowing && (
        <NewKeyForm
          onClose={() => void navigate({ to: "/people/keys", search: (old) => ({ ...old, add: undefined }) })}
        />
      )}
      {error && <Problem error={error} />}
      {keys.length === 0 && ofWorkspace.data && (
        <Empty title="No keys yet" command="portside keys create --role Editor --expires 30d">
          Programs call the platform and its agents with API keys.
        </Empty>
      )}
      {keys.length > 0 && (
        <section className="card" aria-label="API keys">
          <Table
            label="API keys"
            rows={keys}
            getKey={(key) => key.id}
            isStacked
            columns={[
              { title: "Key", show: (key) => <Name of={key} /> },
              { title: "Acts as", show: (key) => actsAs(key, identity.user_email) },
              { title: "May", show: (key) => <Permissions of={key} /> },
              { title: "Last used", show: (key) => <AgoOrNever at={key.last_used_at} /> },
              { title: "Expires", show: (key) => <AgoOrNever at={key.expires_at} /> },
              {
                title: "Created",
                show: (key) => (
                  <>
                    <Ago at={key.created_at} />
                    <div className="soft small">{getCreator(key)}</div>
                  </>
                ),
              },
              {
                title: "Actions",
                isActions: true,
                show: (key) =>
                  mayRevoke(key) && (
                    <button
                      type="button"
                      className="copy"
                      aria-label={`Revoke ${key.description}`}
                      title="Revoke this key"
                      onClick={() => setKeyToRevoke(key)}
                    >
                      <Icon name="trash" />
                    </button>
                  ),
              },
            ]}
          />
        </section>
      )}
      {keyToRevoke && <RevokeKey of={keyToRevoke} isOrganization={mayManageAll} onClose={() => setKeyToRevoke(null)} />}
    </>
  );
}

// A key of the workspace is in the organization's list too.
function merge(own: Key[], ofWorkspace: Key[], ofOrganization: Key[]): Listed[] {
  const keys = new Map<string, Listed>();
  for (const key of ofOrganization) keys.set(key.id, { ...key, kind: "organization" });
  for (const key of ofWorkspace) keys.set(key.id, { ...key, kind: "workspace" });
  for (const key of own) keys.set(key.id, { ...key, kind: "personal" });
  return [...keys.values()].sort((one, other) => other.created_at.localeCompare(one.created_at));
}

function actsAs(key: Listed, email: string | null): string {
  if (key.kind === "personal") return email ?? "you";
  return key.workspace_names.length ? key.workspace_names.join(", ") : "the organization";
}

function Name({ of: key }: { of: Key }) {
  return (
    <>
      <span title={key.description}>{key.description}</span>
      {key.used_by && (
        <span className="tag system" title={`Used by ${key.used_by}`}>
          system
        </span>
      )}
      <div className="soft small">
        <code>{key.short_key}</code>
      </div>
    </>
  );
}

function getCreator(key: Listed): string {
  if (key.created_by) return `by ${key.created_by}`;
  return key.used_by ? "by the platform" : "creator unknown";
}

function Permissions({ of: key }: { of: Key }) {
  const all = key.permissions;
  const short = all.includes("*") ? "everything" : `${all.length} ${all.length === 1 ? "permission" : "permissions"}`;

  return (
    <span title={all.join("\n")}>
      {short}
      {key.read_only && <span className="soft"> · reads only</span>}
    </span>
  );
}

function RevokeKey({ of: key, isOrganization, onClose }: { of: Listed; isOrganization: boolean; onClose: () => void }) {
  const [isSure, setSure] = useState(key.used_by === null);
  const own = useChange("DELETE /api-key/current/{key_id}", onClose);
  const ofWorkspace = useChange("DELETE /api-key/{key_id}", onClose);
  const ofOrganization = useChange("DELETE /orgs/current/service-keys/{key_id}", onClose);

  const isPersonal = key.kind === "personal";
  const change = isPersonal ? own : isOrganization ? ofOrganization : ofWorkspace;

  const revoke = () => {
    const path = { key_id: key.id };
    const query = { force: key.used_by !== null };
    if (isPersonal) own.mutate({ path });
    else if (isOrganization) ofOrganization.mutate({ path, query });
    else ofWorkspace.mutate({ path, query });
  };

  return (
    <Confirm
      title={`Revoke ${key.short_key}?`}
      action="Revoke"
      change={change}
      isDisabled={!isSure}
      onConfirm={revoke}
      onClose={onClose}
    >
      <p>
        “{key.description}”: requests with this key are refused from then on. This cannot be undone; a new key can be
        made at any time.
      </p>
      {key.used_by && (
        <>
          <p>
            <strong>It is used by {key.used_by}.</strong> Until the platform has made another one, requests with it are
            refused, and traces of that time are lost. To replace it without a loss, run:
          </p>
          <Command text={`portside keys rotate ${key.id}`} />
          <label className="check">
            <input type="checkbox" checked={isSure} onChange={(event) => setSure(event.target.checked)} />
            Revoke it all the same
          </label>
        </>
      )}
    </Confirm>
  );
}
