import { useNavigate } from "@tanstack/react-router";
import { Icon } from "../ui/Icon";
import { useSession } from "./session";

export function WorkspaceSwitch() {
  const { workspace, workspaces } = useSession();
  const navigate = useNavigate();

  if (workspaces.length < 2) return <div className="workspace-name">{workspace?.display_name}</div>;

  return (
    <label className="workspace">
      <span className="hidden">Workspace</span>
      <select
        value={workspace?.tenant_handle}
        onChange={(event) => void navigate({ to: "/", search: { workspace: event.target.value } })}
      >
        {workspaces.map((each) => (
          <option key={each.id} value={each.tenant_handle}>
            {each.display_name}
          </option>
        ))}
      </select>
    </label>
  );
}

export function Account() {
  const { identity } = useSession();
  const name = identity.user_email ?? identity.short_key;

  return (
    <div className="account">
      <Icon name="person" />
      <span className="account-name" title={`${name}: ${identity.roles.join(", ") || "API key"}`}>
        {name}
      </span>
      <form method="post" action="/login/out">
        <button type="submit" className="link">
          Sign out
        </button>
      </form>
    </div>
  );
}
