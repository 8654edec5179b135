import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import type { Member, Role } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useMay, useSession } from "../../shell/session";
import { Confirm } from "../../ui/Confirm";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";
import { Table, type TableColumn } from "../../ui/Table";
import { Ago } from "../../ui/Time";
import { AddMember } from "./AddMember";
import { useGrantable, useRoles } from "./roles";

const membersTab = getRouteApi("/people/");

interface Person {
  userId: string;
  email: string;
  name: string | null;
  since: string;
  organization: Member | null;
  workspace: Member | null;
}

// One line for each person, with the role in the organization and the one in this workspace.
export function MembersTab() {
  const { add } = membersTab.useSearch();
  const navigate = useNavigate();
  const { workspace, identity } = useSession();
  const mayManage = useMay("organization:manage");
  const mayManageWorkspace = useMay("workspaces:manage");
  const roles = useRoles();
  const all = useApi("GET /orgs/current/members", {}, { enabled: useMay("organization:read") });

  const here = useApi("GET /workspaces/current/members", {}, { enabled: useMay("workspaces:read") });
  const [personToRemove, setPersonToRemove] = useState<Person | null>(null);

  const error = all.error ?? here.error;
  const people = getPersons(all.data ?? [], here.data ?? []);
  const removal: TableColumn<Person> = {
    title: "Actions",
    isActions: true,
    show: (person) => (
      <button
        type="button"
        className="copy"
        aria-label={`Remove ${person.email}`}
        title="Remove from the organization"
        onClick={() => setPersonToRemove(person)}
      >
        <Icon name="trash" />
      </button>
    ),
  };

  const setAdding = (isAdding: boolean) =>
    void navigate({ to: "/people", search: (old) => ({ ...old, add: isAdding ? "yes" : undefined }) });

  return (
    <>
      {mayManage && !add && (
        <div>
          <Link to="/people" search={(old) => ({ ...old, add: "yes" })} className="button main">
            <Icon name="plus" />
            Add a member
          </Link>
        </div>
      )}
      {mayManage && add && <AddMember roles={roles} onClose={() => setAdding(false)} />}
      {error && <Problem error={error} />}
      {people.length > 0 && (
        <section className="card" aria-label="Members">
          <Table
            label="Members"
            rows={people}
            getKey={(person) => person.userId}
            isStacked
            columns={[
              { title: "Person", show: (person) => <Name of={person} isSelf={person.userId === identity.user_id} /> },
              {
                title: "In the organization",
                show: (person) => <OrganizationRole person={person} roles={roles.organization} mayManage={mayManage} />,
              },
              {
                title: `In ${workspace?.display_name ?? "the workspace"}`,
                show: (person) => (
                  <WorkspaceRole person={person} roles={roles.workspace} mayManage={mayManageWorkspace} />
                ),
              },
              { title: "Since", show: (person) => <Ago at={person.since} /> },
              ...(mayManage ? [removal] : []),
            ]}
          />
        </section>
      )}
      {personToRemove && <RemoveMember person={personToRemove} onClose={() => setPersonToRemove(null)} />}
    </>
  );
}

function Name({ of: person, isSelf }: { of: Person; isSelf: boolean }) {
  return (
    <>
      <span title={person.email}>{person.email}</span>
      {isSelf && <span className="tag">you</span>}
      {person.name && <div className="soft small">{person.name}</div>}
    </>
  );
}

function getPersons(all: Member[], here: Member[]): Person[] {
  const persons = new Map<string, Person>();
  for (const [place, members] of [
    ["organization", all],
    ["workspace", here],
  ] as const) {
    for (const member of members) {
      const person = persons.get(member.user_id) ?? {
        userId: member.user_id,
        email: member.email,
        name: member.full_name,
        since: member.created_at,
        organization: null,
        workspace: null,
      };

      persons.set(member.user_id, { ...person, [place]: member });
    }
  }

  return [...persons.values()].sort((one, other) => one.email.localeCompare(other.email));
}

interface RoleProps {
  person: Person;
  roles: Role[];
  mayManage: boolean;
}

function OrganizationRole({ person, roles, mayManage }: RoleProps) {
  const change = useChange("PATCH /orgs/current/members/{user_id}");
  const grantable = useGrantable(roles);

  const current = person.organization;
  if (current === null) return <span className="soft">–</span>;

  // A role that permits more than the caller may is not the caller's to take away.
  if (!mayManage || !grantable.some((role) => role.id === current.role_id)) return current.role_name;

  return (
    <>
      <select
        aria-label={`Role of ${person.email} in the organization`}
        value={current.role_id}
        disabled={change.isPending}
        onChange={(event) => change.mutate({ path: { user_id: person.userId }, body: { role_id: event.target.value } })}
      >
        {grantable.map((role) => (
          <option key={role.id} value={role.id}>
            {role.display_name}
          </option>
        ))}
      </select>
      {change.error && (
        <p className="bad-text" role="alert">
          {change.error.message}
        </p>
      )}
    </>
  );
}

function WorkspaceRole({ person, roles, mayManage }: RoleProps) {
  const join = useChange("POST /workspaces/current/members");
  const change = useChange("PATCH /workspaces/current/members/{user_id}");
  const leave = useChange("DELETE /workspaces/current/members/{user_id}");
  const grantable = useGrantable(roles);

  const current = person.workspace;
  const isAdmin = person.organization?.role_name === "Organization Admin";
  const isOthers = current !== null && !grantable.some((role) => role.id === current.role_id);
  if (!mayManage || isOthers || grantable.length === 0) {
    return current?.role_name ?? <span className="soft">{isAdmin ? "everything, as admin" : "no access"}</span>;
  }

  const error = join.error ?? change.error ?? leave.error;
  const path = { user_id: person.userId };

  const choose = (role: string) => {
    if (role === "") leave.mutate({ path });
    else if (current === null) join.mutate({ body: { user_id: person.userId, role_id: role } });
    else change.mutate({ path, body: { role_id: role } });
  };

  return (
    <>
      <select
        aria-label={`Role of ${person.email} in the workspace`}
        value={current?.role_id ?? ""}
        disabled={join.isPending || change.isPending || leave.isPending}
        onChange={(event) => choose(event.target.value)}
      >
        <option value="">{isAdmin ? "everything, as admin" : "no access"}</option>
        {grantable.map((role) => (
          <option key={role.id} value={role.id}>
            {role.display_name}
          </option>
        ))}
      </select>
      {error && (
        <p className="bad-text" role="alert">
          {error.message}
        </p>
      )}
    </>
  );
}

function RemoveMember({ person, onClose }: { person: Person; onClose: () => void }) {
  const remove = useChange("DELETE /orgs/current/members/{user_id}", onClose);

  return (
    <Confirm
      title={`Remove ${person.email}?`}
      action="Remove"
      change={remove}
      onConfirm={() => remove.mutate({ path: { user_id: person.userId } })}
      onClose={onClose}
    >
      <p>
        All keys and sessions of this person end at once, in every workspace. What the person made stays. To take only
        this workspace away, choose “no access” instead.
      </p>
    </Confirm>
  );
}
