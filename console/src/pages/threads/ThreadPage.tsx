import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { ShortId } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { Icon } from "../../ui/Icon";
import { Json, summarize } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { Tabs } from "../../ui/Tabs";
import { Ago } from "../../ui/Time";
import { findDifferences } from "./diff";
import { RunsTab } from "./RunsTab";
import { Timeline } from "./Timeline";
import { isStopped, ThreadState } from "./thread";
import { useStateAt, useThread } from "./useThread";

const threadRoute = getRouteApi("/agents/$deploymentId/threads/$threadId");

const EVERY_MS = 3_000;

const VIEWS = [
  ["state", "State"],
  ["diff", "Changes"],
  ["runs", "Runs"],
  ["metadata", "Thread"],
] as const;

type View = (typeof VIEWS)[number][0];

export function ThreadPage() {
  const { deploymentId, threadId } = threadRoute.useParams();
  const { view, checkpoint, against } = threadRoute.useSearch();
  const navigate = useNavigate();
  const query = useThread(deploymentId, threadId, EVERY_MS);

  const show = (changes: { view?: string; checkpoint?: string; against?: string | undefined }) =>
    void navigate({ to: ".", search: (old) => ({ ...old, ...changes }), replace: changes.view !== undefined });

  if (!query.data) {
    return query.error ? (
      <div className="page">
        <Problem error={query.error} retry={() => void query.refetch()} />
      </div>
    ) : null;
  }

  const thread = query.data;
  const assistant = thread.metadata?.assistant_id;
  const tab = (VIEWS.find(([each]) => each === view)?.[0] ?? "state") satisfies View;

  return (
    <div className="page full wide">
      <div className="head">
        <div className="row">
          <h1>
            Thread <ShortId id={threadId} what="thread id" />
          </h1>
          <ThreadState status={thread.status} interrupts={thread.interrupts} />
          <span className="soft">{thread.updated_at && <Ago at={thread.updated_at} />}</span>
        </div>
        <Link
          to="/agents/$deploymentId/studio"
          params={{ deploymentId }}
          search={{
            thread: threadId,
            ...(checkpoint ? { checkpoint } : {}),
            ...(typeof assistant === "string" ? { assistant } : {}),
          }}
          className="button"
        >
          <Icon name="play" />
          {checkpoint ? "Open this checkpoint in the studio" : "Open in the studio"}
        </Link>
      </div>
      <div className="thread">
        <Timeline
          key={threadId}
          deploymentId={deploymentId}
          threadId={threadId}
          selected={checkpoint}
          changedAt={thread.updated_at}
          onSelect={(id) => show({ checkpoint: id })}
        />
        <section className="card thread-state" aria-label="State">
          <Tabs label="Views" tabs={VIEWS} selected={tab} search={(next, old) => ({ ...old, view: next })} />
          <div className="card-body">
            {tab === "state" && (
              <StateView
                deploymentId={deploymentId}
                threadId={threadId}
                checkpoint={checkpoint}
                changedAt={thread.updated_at}
              />
            )}
            {tab === "diff" && (
              <DiffView
                deploymentId={deploymentId}
                threadId={threadId}
                checkpoint={checkpoint}
                against={against}
                changedAt={thread.updated_at}
                onBase={(id) => show({ against: id, view: "diff" })}
              />
            )}
            {tab === "runs" && <RunsTab deploymentId={deploymentId} threadId={threadId} />}
            {tab === "metadata" && <Json value={thread} name="thread" open={2} />}
          </div>
        </section>
      </div>
    </div>
  );
}

interface ViewProps {
  deploymentId: string;
  threadId: string;
  checkpoint: string | undefined;
  changedAt: string | undefined;
}

function StateView({ deploymentId, threadId, checkpoint, changedAt }: ViewProps) {
  const query = useStateAt(deploymentId, threadId, checkpoint, changedAt);
  if (!query.data) {
    return query.error ? <Problem error={query.error} retry={() => void query.refetch()} /> : null;
  }

  const { values, next, interrupts, tasks, metadata } = query.data;
  const failed = (tasks ?? []).filter((task) => task.error);

  return (
    <div className="stack">
      {interrupts?.map((each) => (
        <div key={each.id} className="interrupt-note">
          <strong>Waits for a person</strong> <ShortId id={each.id} what="interrupt id" />
          <Json value={each.value} name="question" />
        </div>
      ))}
      {failed.map((task) => (
        <p key={task.id} className="notice">
          {task.name}: {isStopped(task.error) ? "was stopped" : task.error}
        </p>
      ))}
      {next && next.length > 0 && (
        <p>
          <span className="soft">Next</span> <code>{next.join(", ")}</code>
        </p>
      )}
      <Json value={values ?? {}} name="values" open={2} />
      <details>
        <summary>Metadata</summary>
        <Json value={metadata ?? {}} name="metadata" />
      </details>
    </div>
  );
}

function DiffView({
  deploymentId,
  threadId,
  checkpoint,
  against,
  changedAt,
  onBase,
}: ViewProps & { against: string | undefined; onBase: (checkpoint: string | undefined) => void }) {
  const after = useStateAt(deploymentId, threadId, checkpoint, changedAt);
  const parent = against ?? after.data?.parent_checkpoint?.checkpoint_id ?? undefined;
  const before = useStateAt(deploymentId, threadId, parent, undefined, parent !== undefined);

  const error = after.error ?? before.error;
  if (error) return <Problem error={error} />;
  if (!after.data || (parent !== undefined && !before.data)) return null;
  const changes = findDifferences(parent ? (before.data?.values ?? {}) : {}, after.data.values ?? {});

  return (
    <div className="stack">
      <p className="soft">
        From {parent ? <ShortId id={parent} what="checkpoint id" /> : "nothing"} to{" "}
        <ShortId id={after.data.checkpoint?.checkpoint_id ?? ""} what="checkpoint id" />{" "}
        {against ? (
          <button type="button" className="link" onClick={() => onBase(undefined)}>
            Compare with the one before
          </button>
        ) : (
          <button
            type="button"
            className="link"
            title="Then choose another checkpoint to see what is different there"
            onClick={() => onBase(after.data?.checkpoint?.checkpoint_id ?? undefined)}
          >
            Compare others with this one
          </button>
        )}
      </p>
      {changes.length === 0 && <Empty title="Nothing changed">Both states have the same values.</Empty>}
      <ul className="diff">
        {changes.map((each) => (
          <li key={`${each.kind} ${each.path}`} className={each.kind}>
            <div className="row">
              <span className="diff-kind">{each.kind}</span>
              <code>{each.path}</code>
            </div>
            {each.kind !== "added" && <Side sign="−" value={each.before} name={`${each.path}-before`} />}
            {each.kind !== "removed" && <Side sign="+" value={each.after} name={`${each.path}-after`} />}
          </li>
        ))}
      </ul>
    </div>
  );
}

function Side({ sign, value, name }: { sign: string; value: unknown; name: string }) {
  return (
    <div className={sign === "+" ? "diff-side after" : "diff-side before"}>
      <span aria-hidden="true">{sign}</span>
      {typeof value === "object" && value !== null ? (
        <Json value={value} name={name} open={summarize(value, 200).length < 200 ? 1 : 0} />
      ) : (
        <Json value={value} name={name} />
      )}
    </div>
  );
}
