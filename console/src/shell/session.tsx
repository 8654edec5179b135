// Who is signed in, in which workspace, and what that allows.

import { useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { createContext, type ReactNode, useContext, useEffect, useMemo } from "react";
import { type ApiError, call, setRequestWorkspace } from "../api/client";
import type { Identity, Workspace } from "../api/platform";
import { ownAgent } from "../api/server";
import { preferences, setPreferences } from "../preferences";
import { Problem } from "../ui/Problem";
import { Progress } from "../ui/Progress";

interface Session {
  identity: Identity;
  workspace: Workspace | null;
  workspaces: Workspace[];
}

const SessionContext = createContext<Session | null>(null);

export function useSession(): Session {
  const session = useContext(SessionContext);
  if (session === null) throw new Error("outside of the session");
  return session;
}

export function useWorkspaceId(): string | null {
  return useContext(SessionContext)?.workspace?.id ?? null;
}

// Whether the server would allow this. It decides; the console only hides what would be refused.
export function useMay(permission: string): boolean {
  return covers(useSession().identity.permissions, permission);
}

// Whether permissions include this one, by itself or by a wildcard.
export function covers(permissions: string[], permission: string): boolean {
  const all = `${permission.split(":", 1)[0]}:*`;
  return permissions.includes("*") || permissions.includes(all) || permissions.includes(permission);
}

// Where there is no platform nobody signs in, and no route of it may be called.
const NOBODY: Session = {
  identity: {
    organization_id: "",
    tenant_id: null,
    workspace_name: null,
    tenant_handle: null,
    user_id: null,
    user_email: null,
    key_id: "",
    short_key: "",
    permissions: [],
    roles: [],
  },
  workspace: null,
  workspaces: [],
};

export function SessionProvider({ children }: { children: ReactNode }) {
  if (ownAgent !== null) return <SessionContext value={NOBODY}>{children}</SessionContext>;
  return <PlatformSession>{children}</PlatformSession>;
}

function PlatformSession({ children }: { children: ReactNode }) {
  const addressHandle = useSearch({ strict: false }).workspace;
  const navigate = useNavigate();
  const workspaces = useQuery<Workspace[], ApiError>({
    queryKey: ["workspaces"],
    queryFn: ({ signal }) => call("GET /workspaces", {}, signal),
  });

  const workspace = useMemo(() => choose(workspaces.data ?? [], addressHandle), [workspaces.data, addressHandle]);
  setRequestWorkspace(workspace?.id ?? null);
  const identity = useQuery<Identity, ApiError>({
    queryKey: [workspace?.id ?? null, "identity"],
    queryFn: ({ signal }) => call("GET /auth", {}, signal),
    enabled: workspaces.data !== undefined,
  });

  const handle = workspace?.tenant_handle;
  const isShared = (workspaces.data?.length ?? 0) > 1;
  useEffect(() => {
    if (handle === undefined) return;
    setPreferences({ workspace: handle });

    // With several workspaces an address that is sent to a colleague must name its own.
    if (isShared && addressHandle !== handle) {
      void navigate({ to: ".", search: (old) => ({ ...old, workspace: handle }), replace: true });
    }
  }, [handle, isShared, addressHandle, navigate]);

  const value = useMemo(
    () => identity.data && { identity: identity.data, workspace, workspaces: workspaces.data ?? [] },
    [identity.data, workspace, workspaces.data],
  );

  const error = workspaces.error ?? identity.error;
  if (value) return <SessionContext value={value}>{children}</SessionContext>;

  if (error) {
    return (
      <main className="alone">
        <Problem error={error} retry={() => void (workspaces.error ? workspaces.refetch() : identity.refetch())} />
      </main>
    );
  }

  return <Progress />;
}

function choose(workspaces: Workspace[], handle: string | undefined): Workspace | null {
  // Links of SDKs name the workspace by its id.
  const find = (name: string | null | undefined) =>
    workspaces.find((each) => each.tenant_handle === name || each.id === name);

  return find(handle) ?? find(preferences().workspace) ?? workspaces[0] ?? null;
}
