import { useState } from "react";
import type { LoginSession } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useMay, useSession } from "../../shell/session";
import { Confirm } from "../../ui/Confirm";
import { Empty } from "../../ui/Empty";
import { Problem } from "../../ui/Problem";
import { Table } from "../../ui/Table";
import { Ago } from "../../ui/Time";

// Where people are signed in. Those who manage the organization see everybody's sessions.
export function SessionsTab() {
  const isManager = useMay("organization:manage");
  const isMember = useMay("organization:read");
  const all = useApi("GET /orgs/current/sessions", {}, { enabled: isManager });
  const own = useApi("GET /users/me/sessions", {}, { enabled: isMember && !isManager });

  const sessions = isManager ? all : own;
  const [sessionToEnd, setSessionToEnd] = useState<LoginSession | null>(null);

  return (
    <>
      {sessions.error && <Problem error={sessions.error} retry={() => void sessions.refetch()} />}
      {(sessions.data?.length === 0 || !isMember) && (
        <Empty title="No sessions">Browsers and command lines that somebody signed in are listed here.</Empty>
      )}
      {sessions.data && sessions.data.length > 0 && (
        <section className="card" aria-label="Sessions">
          <Table
            label="Sessions"
            rows={sessions.data}
            getKey={(session) => session.id}
            isStacked
            columns={[
              {
                title: "Person",
                show: (session) => (
                  <>
                    {session.user_email}
                    {session.is_current && <span className="tag">this one</span>}
                  </>
                ),
              },
              {
                title: "Signed in",
                show: (session) => (
                  <>
                    <Ago at={session.created_at} /> <span className="soft">by {session.method}</span>
                  </>
                ),
              },
              {
                title: "From",
                show: (session) => (
                  <span title={session.client ?? ""}>
                    {getClient(session)} <span className="soft">{session.address}</span>
                  </span>
                ),
              },
              { title: "Last used", show: (session) => <Ago at={session.last_used_at} /> },
              { title: "Ends", show: (session) => <Ago at={session.expires_at} /> },
              {
                title: "Actions",
                isActions: true,
                show: (session) =>
                  !session.is_current && (
                    <button type="button" className="link" onClick={() => setSessionToEnd(session)}>
                      End
                    </button>
                  ),
              },
            ]}
          />
        </section>
      )}
      {sessionToEnd && <EndSession of={sessionToEnd} isManager={isManager} onClose={() => setSessionToEnd(null)} />}
    </>
  );
}

function EndSession({
  of: session,
  isManager,
  onClose,
}: {
  of: LoginSession;
  isManager: boolean;
  onClose: () => void;
}) {
  const { identity } = useSession();
  const own = useChange("DELETE /users/me/sessions/{session_id}", onClose);
  const any = useChange("DELETE /orgs/current/sessions/{session_id}", onClose);

  const change = isManager ? any : own;
  const whose = session.user_email === identity.user_email ? "your" : `the ${session.kind}`;

  return (
    <Confirm
      title={`End ${whose} session of ${session.user_email}?`}
      action="End the session"
      change={change}
      onConfirm={() => change.mutate({ path: { session_id: session.id } })}
      onClose={onClose}
    >
      <p>{getClient(session)} must sign in again. API keys go on working.</p>
    </Confirm>
  );
}

const BROWSERS = ["Firefox", "Edg", "OPR", "Chrome", "Safari"];
const NAMES: Record<string, string> = { Edg: "Edge", OPR: "Opera" };

// The name of the program in a user agent; browsers name their relatives too, so that the order matters.
function getClient(session: LoginSession): string {
  const client = session.client ?? "";
  const browser = BROWSERS.find((name) => client.includes(`${name}/`));
  if (browser) return NAMES[browser] ?? browser;
  return client.split("/", 1)[0] || session.kind;
}
