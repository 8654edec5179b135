import type { FoundRun } from "../api/agentServer";
import type { Deployment, DeploymentStatus, RevisionStatus } from "../api/platform";

type Tone = "good" | "busy" | "bad" | "idle" | "wait";

// A state is shown by a shape and a word; the colour only repeats them.
export function Status({ tone, word, title }: { tone: Tone; word: string; title?: string | null }) {
  return (
    <span className={`status ${tone}`} title={title ?? undefined}>
      <svg viewBox="0 0 12 12" aria-hidden="true">
        {tone === "good" && <path d="M6 .8a5.2 5.2 0 1 1 0 10.400A5.2 5.2 0 0 1 6 .8zM3.6 6.200l1.7 1.7 3.2-3.6" />}
        {tone === "busy" && <path d="M6 1.200A4.8 4.8 0 1 1 1.2 6" />}
        {tone === "bad" && <path d="M6 .9 11.3 10.600H.7zM6 4.400v2.900M6 8.700v.4" />}
        {tone === "wait" && <path d="M6 .8a5.2 5.2 0 1 1 0 10.400A5.2 5.2 0 0 1 6 .8zM4.600 4v4M7.400 4v4" />}
        {tone === "idle" && <path d="M6 1.500a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9z" />}
      </svg>
      {word}
    </span>
  );
}

const REVISION: Record<RevisionStatus, [Tone, string]> = {
  QUEUED: ["idle", "Queued"],
  CREATING: ["busy", "Creating"],
  AWAITING_BUILD: ["busy", "Waiting to build"],
  BUILDING: ["busy", "Building"],
  AWAITING_DEPLOY: ["busy", "Waiting to deploy"],
  DEPLOYING: ["busy", "Deploying"],
  DEPLOYED: ["good", "Deployed"],
  CREATE_FAILED: ["bad", "Create failed"],
  BUILD_FAILED: ["bad", "Build failed"],
  DEPLOY_FAILED: ["bad", "Deploy failed"],
  SKIPPED: ["idle", "Skipped"],
  INTERRUPTED: ["idle", "Interrupted"],
  UNKNOWN: ["bad", "Unknown"],
};

const DEPLOYMENT: Record<DeploymentStatus, [Tone, string]> = {
  READY: ["good", "Ready"],
  AWAITING_DATABASE: ["busy", "Preparing"],
  UNUSED: ["idle", "Not running"],
  UNKNOWN: ["bad", "Not answering"],
  AWAITING_DELETE: ["busy", "Being deleted"],
};

const RUN: Record<FoundRun["status"], [Tone, string]> = {
  pending: ["idle", "Queued"],
  running: ["busy", "Running"],
  success: ["good", "Done"],
  error: ["bad", "Failed"],
  timeout: ["bad", "Timed out"],
  interrupted: ["wait", "Interrupted"],
};

export function RunState({ status }: { status: FoundRun["status"] }) {
  const [tone, word] = RUN[status];
  return <Status tone={tone} word={word} />;
}

export function RevisionState({ status, title }: { status: RevisionStatus; title?: string | null }) {
  const [tone, word] = REVISION[status];
  return <Status tone={tone} word={word} title={title ?? null} />;
}

type DeploymentLike = Pick<Deployment, "status" | "is_asleep" | "active_revision_id" | "latest_revision_id">;

export function DeploymentState({ of, title }: { of: DeploymentLike; title?: string | null }) {
  const [tone, word] = getState(of);
  return <Status tone={tone} word={word} title={title ?? null} />;
}

// READY alone says that there is a database for the agent: without an active revision nothing has served yet. An agent
// that sleeps is well: the next request wakes it.
function getState({ status, is_asleep, active_revision_id, latest_revision_id }: DeploymentLike): [Tone, string] {
  if (status === "READY" && active_revision_id === null) return ["busy", "Not serving yet"];
  if (status === "READY" && is_asleep) return ["idle", "Asleep"];
  if (status === "UNUSED" && latest_revision_id !== null) return ["bad", "Never served"];
  return DEPLOYMENT[status];
}

export function isInProgress(status: RevisionStatus): boolean {
  return REVISION[status][0] === "busy" || status === "QUEUED";
}

export function isFailed(status: RevisionStatus): boolean {
  return REVISION[status][0] === "bad";
}
