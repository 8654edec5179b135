import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { useCallback, useState } from "react";
import { useAgentApi } from "../../api/agentQueries";
import type { Assistant, RunCreate } from "../../api/agentServer";
import { GRAPH_REFRESH } from "../../api/server";
import { Empty } from "../../ui/Empty";
import { Problem } from "../../ui/Problem";
import type { Schema } from "../../ui/schema";
import { Tabs } from "../../ui/Tabs";
import { useNarrow } from "../../ui/useNarrow";
import { useThread } from "../threads/useThread";
import { AssistantPanel } from "./AssistantPanel";
import { GraphPanel } from "./GraphPanel";
import { StatePanel } from "./StatePanel";
import { StudioHead } from "./StudioHead";
import { StudioMain } from "./StudioMain";
import { ThreadsPanel } from "./ThreadsPanel";
import { getBranch, type Studio, THREAD_EVERY_MS, useStudio } from "./useStudio";

const studioRoute = getRouteApi("/agents/$deploymentId/studio");

const PANELS = [
  ["chat", "Chat"],
  ["graph", "Graph"],
  ["state", "State"],
  ["assistant", "Assistant"],
  ["threads", "Threads"],
] as const;

export function StudioPage() {
  const { deploymentId } = studioRoute.useParams();
  const { thread: threadId, assistant: assistantName } = studioRoute.useSearch();
  const query = useAgentApi(
    deploymentId,
    "POST /assistants/search",
    { body: { limit: 100, sort_by: "name" } },
    GRAPH_REFRESH,
  );

  const thread = useThread(deploymentId, threadId, THREAD_EVERY_MS);

  if (query.error && !query.data) {
    return (
      <div className="page">
        <Problem error={query.error} retry={() => void query.refetch()} />
      </div>
    );
  }

  const isKnown = assistantName !== undefined || threadId === undefined || !thread.isPending;
  if (!query.data || !isKnown) return null;
  const assistants = query.data as Assistant[];

  const assistant = findAssistant(assistants, assistantName, thread.data?.metadata);
  if (!assistant) {
    return (
      <Empty title="The agent lists no assistant for you">
        Each graph of an agent has an assistant. The agent's own rules (<code>auth.on</code>) hide them here: let a
        handler return <code>None</code> if <code>isinstance(ctx.user, Auth.types.StudioUser)</code>, as the guide
        “Protect an agent” shows. In JavaScript, compare <code>user.kind</code> with <code>"StudioUser"</code>.
      </Empty>
    );
  }

  return <OpenStudio key={deploymentId} deploymentId={deploymentId} assistants={assistants} assistant={assistant} />;
}

// The one that the address names, else the one that ran on the thread.
function findAssistant(
  assistants: Assistant[],
  name: string | undefined,
  metadata: Record<string, unknown> = {},
): Assistant | undefined {
  return (
    assistants.find((each) => each.assistant_id === (name ?? metadata.assistant_id)) ??
    assistants.find((each) => each.graph_id === metadata.graph_id) ??
    assistants[0]
  );
}

interface Props {
  deploymentId: string;
  assistants: Assistant[];
  assistant: Assistant;
}

type Show = (changes: Record<string, string | undefined>, replace?: boolean) => void;

function OpenStudio({ deploymentId, assistants, assistant }: Props) {
  const { thread: threadId, checkpoint } = studioRoute.useSearch();
  const navigate = useNavigate();
  const show: Show = useCallback(
    (changes, replace = true) => void navigate({ to: ".", search: (old) => ({ ...old, ...changes }), replace }),
    [navigate],
  );

  const studio = useStudio(deploymentId, threadId, checkpoint);
  const [context, setContext] = useState<Record<string, unknown>>({});

  // Nodes before which runs of this page stop.
  const [pauses, setPauses] = useState<string[]>([]);
  const schemas = useAgentApi(
    deploymentId,
    "GET /assistants/{assistant_id}/schemas",
    { path: { assistant_id: assistant.assistant_id } },
    GRAPH_REFRESH,
  ).data;

  const isContext = Boolean(schemas?.context_schema);
  const branch = getBranch(studio, checkpoint);
  const panel = usePanel();

  return (
    <div className="studio" data-panel={panel.isOpen ? "open" : "chat"}>
      <StudioHead
        deploymentId={deploymentId}
        assistants={assistants}
        assistant={assistant}
        threadId={threadId}
        branch={branch}
        onShow={(changes) => show(changes, false)}
      />
      <StudioMain
        deploymentId={deploymentId}
        assistant={assistant}
        threadId={threadId}
        checkpoint={checkpoint}
        settings={{
          ...toSettings(assistant, context, isContext),
          ...(pauses.length > 0 ? { interrupt_before: pauses } : {}),
        }}
        studio={studio}
        inputSchema={schemas?.input_schema as Schema | undefined}
        isLeaf={branch.isLeaf}
        onLatest={() => show({ checkpoint: undefined })}
        onStart={(thread) =>
          show({ thread, checkpoint: undefined, assistant: assistant.assistant_id }, threadId !== undefined)
        }
      />
      <section className="studio-panel" aria-label="Details">
        <Tabs
          label="Views"
          tabs={panel.tabs}
          selected={panel.shown}
          search={(next, old) => ({ ...old, panel: next })}
        />
        {panel.shown === "threads" ? (
          <div className="studio-panel-body">
            <ThreadsPanel
              deploymentId={deploymentId}
              threadId={threadId}
              onOpen={(each) => {
                const ran = each.metadata?.assistant_id;
                const { thread_id: thread } = each;
                show({ thread, checkpoint: undefined, ...(ran ? { assistant: String(ran) } : {}) }, false);
              }}
            />
          </div>
        ) : panel.shown === "assistant" ? (
          <div className="studio-panel-body">
            <AssistantPanel
              deploymentId={deploymentId}
              assistant={assistant}
              schema={(schemas?.context_schema ?? schemas?.config_schema) as Schema}
              isContext={isContext}
              values={context}
              onChange={setContext}
              onCreated={(id) => show({ assistant: id || undefined }, false)}
            />
          </div>
        ) : (
          <ThreadPanel
            deploymentId={deploymentId}
            assistant={assistant}
            threadId={threadId}
            studio={studio}
            isState={panel.shown === "state"}
            pauses={pauses}
            onPauses={setPauses}
            onEdited={() => show({ checkpoint: undefined })}
          />
        )}
      </section>
    </div>
  );
}

// The panel that the address names. A phone shows the conversation as one of them, other screens beside them.
function usePanel() {
  const { panel } = studioRoute.useSearch();
  const isNarrow = useNarrow();

  const tabs = isNarrow ? PANELS : PANELS.slice(1);
  const tab = tabs.find(([each]) => each === panel)?.[0] ?? (isNarrow ? "chat" : "graph");
  return { tabs, shown: tab, isOpen: tab !== "chat" && panel !== undefined };
}

interface ThreadPanelProps {
  deploymentId: string;
  assistant: Assistant;
  threadId: string | undefined;
  studio: Studio;
  isState: boolean;
  pauses: string[];
  onPauses: (nodes: string[]) => void;
  onEdited: () => void;
}

// The state of the thread, or where in the graph it is.
function ThreadPanel({ studio, isState, pauses, onPauses, onEdited, ...where }: ThreadPanelProps) {
  const { deploymentId, assistant, threadId } = where;
  const { state, live, isRunning, overlay } = studio;
  if (isState) {
    return (
      <div className="studio-panel-body">
        <StatePanel
          deploymentId={deploymentId}
          threadId={threadId}
          state={state.data}
          live={isRunning ? overlay?.values : undefined}
          onEdited={onEdited}
        />
      </div>
    );
  }

  return (
    <div className="studio-panel-body drawn">
      <GraphPanel
        deploymentId={deploymentId}
        assistantId={assistant.assistant_id}
        nodes={live?.nodes ?? new Map()}
        next={isRunning ? [] : (state.data?.next ?? [])}
        pauses={pauses}
        onPauses={onPauses}
      />
    </div>
  );
}

function toSettings(assistant: Assistant, values: Record<string, unknown>, isContext: boolean): Partial<RunCreate> {
  if (Object.keys(values).length === 0) return {};
  return isContext ? { context: values } : { config: { ...assistant.config, configurable: values } };
}
