import { useNavigate } from "@tanstack/react-router";
import { useCallback, useState } from "react";
import { useAgentApi } from "../../api/agentQueries";
import type { Assistant, RunCreate } from "../../api/agentServer";
import { CHANGING } from "../../api/server";
import { studioRoute } from "../../router";
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
import { branchOf, THREAD_EVERY_MS, useStudio } from "./useStudio";

const PANELS = [
  ["chat", "Chat"],
  ["graph", "Graph"],
  ["state", "State"],
  ["assistant", "Assistant"],
] as const;

export function StudioPage() {
  const { deploymentId } = studioRoute.useParams();
  const { thread: threadId, assistant: wanted } = studioRoute.useSearch();
  const found = useAgentApi(
    deploymentId,
    "POST /assistants/search",
    { body: { limit: 100, sort_by: "name" } },
    CHANGING,
  );
  const thread = useThread(deploymentId, threadId, THREAD_EVERY_MS);
  if (found.error && !found.data) {
    return (
      <div className="page">
        <Problem error={found.error} retry={() => void found.refetch()} />
      </div>
    );
  }
  const isKnown = wanted !== undefined || threadId === undefined || !thread.isPending;
  if (!found.data || !isKnown) return null;
  const assistants = found.data as Assistant[];
  const assistant = assistantOf(assistants, wanted, thread.data?.metadata);
  if (!assistant)
    return <Empty title="No assistant">The agent's configuration file names no graph that it serves.</Empty>;
  return <OpenStudio key={deploymentId} deploymentId={deploymentId} assistants={assistants} assistant={assistant} />;
}

// The one that the address names, else the one that ran on the thread.
function assistantOf(
  assistants: Assistant[],
  wanted: string | undefined,
  metadata: Record<string, unknown> = {},
): Assistant | undefined {
  return (
    assistants.find((each) => each.assistant_id === (wanted ?? metadata.assistant_id)) ??
    assistants.find((each) => each.graph_id === metadata.graph_id) ??
    assistants[0]
  );
}

interface Props {
  deploymentId: string;
  assistants: Assistant[];
  assistant: Assistant;
}

function OpenStudio({ deploymentId, assistants, assistant }: Props) {
  const { thread: threadId, checkpoint, panel } = studioRoute.useSearch();
  const navigate = useNavigate();
  const show = useCallback(
    (changes: Record<string, string | undefined>, replace = true) =>
      void navigate({ to: ".", search: (old) => ({ ...old, ...changes }), replace }),
    [navigate],
  );
  const studio = useStudio(deploymentId, threadId, checkpoint);
  const [context, setContext] = useState<Record<string, unknown>>({});
  const schemas = useAgentApi(
    deploymentId,
    "GET /assistants/{assistant_id}/schemas",
    { path: { assistant_id: assistant.assistant_id } },
    CHANGING,
  ).data;
  const isContext = Boolean(schemas?.context_schema);
  const { state, live, isRunning } = studio;
  const branch = branchOf(studio, checkpoint);
  const isNarrow = useNarrow();
  const shown =
    PANELS.find(([each]) => each === panel && (isNarrow || each !== "chat"))?.[0] ?? (isNarrow ? "chat" : "graph");
  return (
    <div className="studio" data-panel={shown === "chat" || !panel ? "chat" : "open"}>
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
        settings={settingsOf(assistant, context, isContext)}
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
          label="Details"
          tabs={isNarrow ? PANELS : PANELS.slice(1)}
          selected={shown}
          onSelect={(each) => show({ panel: each })}
        />
        <div className={shown === "graph" || shown === "chat" ? "studio-panel-body drawn" : "studio-panel-body"}>
          {shown === "state" ? (
            <StatePanel
              deploymentId={deploymentId}
              threadId={threadId}
              state={state.data}
              live={isRunning ? studio.overlay?.values : undefined}
              onEdited={() => show({ checkpoint: undefined })}
            />
          ) : shown === "assistant" ? (
            <AssistantPanel
              deploymentId={deploymentId}
              assistant={assistant}
              schema={(schemas?.context_schema ?? schemas?.config_schema) as Schema}
              isContext={isContext}
              values={context}
              onChange={setContext}
              onCreated={(id) => show({ assistant: id || undefined }, false)}
            />
          ) : (
            <GraphPanel
              deploymentId={deploymentId}
              assistantId={assistant.assistant_id}
              nodes={live?.nodes ?? new Map()}
              next={isRunning ? [] : (state.data?.next ?? [])}
            />
          )}
        </div>
      </section>
    </div>
  );
}

function settingsOf(assistant: Assistant, values: Record<string, unknown>, isContext: boolean): Partial<RunCreate> {
  if (Object.keys(values).length === 0) return {};
  return isContext ? { context: values } : { config: { ...assistant.config, configurable: values } };
}
