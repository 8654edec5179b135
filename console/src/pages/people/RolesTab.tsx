import type { Role } from "../../api/platform";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { Table } from "../../ui/Table";
import { useRoles } from "./roles";

// What each role permits: one line for each kind of thing, one column for each role.
export function RolesTab() {
  const roles = useRoles();
  if (!useMay("organization:read")) {
    return <Empty title="You may not see the roles">They belong to the organization, and this key does not.</Empty>;
  }

  return (
    <>
      <RoleTable title="In a workspace" roles={roles.workspace} />
      <RoleTable title="In the organization" roles={roles.organization} />
    </>
  );
}

function RoleTable({ title, roles }: { title: string; roles: Role[] }) {
  return (
    <section className="card" aria-label={title}>
      <h2>{title}</h2>
      <Table
        label={title}
        rows={getResources(roles)}
        getKey={(resource) => resource}
        isStacked
        columns={[
          { title: "May, with", show: (resource) => resource },
          ...roles.map((role) => ({
            title: role.display_name,
            show: (resource: string) => verbs(role, resource) || <span className="soft">nothing</span>,
          })),
        ]}
      />
    </section>
  );
}

const ORDER = ["call", "read", "create", "create own keys", "update", "delete", "share", "manage"];

function getResources(roles: Role[]): string[] {
  const all = roles.flatMap((role) => role.permissions.map((permission) => permission.split(":", 1)[0] ?? ""));
  return [...new Set(all)].filter((resource) => resource && resource !== "*").sort();
}

function verbs(role: Role, resource: string): string {
  if (role.permissions.includes("*") || role.permissions.includes(`${resource}:*`)) return "everything";

  return role.permissions
    .filter((permission) => permission.startsWith(`${resource}:`))
    .map((permission) => permission.slice(resource.length + 1).replace("pats:create", "create own keys"))
    .sort((one, other) => ORDER.indexOf(one) - ORDER.indexOf(other))
    .join(", ");
}
