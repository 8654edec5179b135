// The command palette: places, deployments, datasets, prompts and tracing projects by a few letters; traces, runs and
// threads by their ids. Opened with Ctrl-K.

import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useEffect, useMemo, useRef, useState } from "react";
import { callAgent } from "../api/agent";
import { useApi } from "../api/queries";
import { ownAgent } from "../api/server";
import { type Agent, useAgents } from "../pages/agents/useAgents";
import { preferences, setPreferences } from "../preferences";
import { Icon, type IconName } from "../ui/Icon";
import { useMay, useWorkspaceId } from "./session";

interface Entry {
  id: string;
  title: string;
  detail: string;
  icon: IconName;
  run: () => void;
}

const SHOWN = 12;
// What one agent without a platform has.
const OF_AGENT = new Set(["inbox", "agents", "theme", "zone"]);

export function Palette({ isOpen, setOpen }: { isOpen: boolean; setOpen: (isOpen: boolean) => void }) {
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      setOpen(true);
    };

    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, [setOpen]);

  return isOpen ? <OpenPalette onClose={() => setOpen(false)} /> : null;
}

function OpenPalette({ onClose }: { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [text, setText] = useState("");
  const [position, setPosition] = useState(0);
  const entries = useEntries(text);

  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  const index = Math.min(position, Math.max(entries.length - 1, 0));

  const choose = (entry: Entry | undefined) => {
    if (!entry) return;
    onClose();
    entry.run();
  };

  return (
    <dialog ref={dialog} className="palette" aria-label="Go to" onClose={onClose}>
      <input
        autoFocus
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-entries"
        aria-activedescendant={entries[index] && `entry-${entries[index].id}`}
        aria-label="Search by name or id"
        placeholder="A place, a name, or the id of a trace, run or thread"
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          setPosition(0);
        }}
        onKeyDown={(event) => {
          if (event.key === "ArrowDown") setPosition(Math.min(index + 1, entries.length - 1));
          else if (event.key === "ArrowUp") setPosition(Math.max(index - 1, 0));
          else if (event.key === "Enter") choose(entries[index]);
          else return;

          event.preventDefault();
        }}
      />
      <div id="palette-entries" role="listbox" aria-label="Results">
        {entries.map((entry, at) => (
          // biome-ignore lint/a11y/useKeyWithClickEvents: the field above handles the keys
          // biome-ignore lint/a11y/useFocusableInteractive: aria-activedescendant marks the chosen one
          <div
            key={entry.id}
            id={`entry-${entry.id}`}
            role="option"
            aria-selected={at === index}
            onClick={() => choose(entry)}
          >
            <Icon name={entry.icon} />
            <span>{entry.title}</span>
            <span className="soft small">{entry.detail}</span>
          </div>
        ))}
        {entries.length === 0 && <p className="soft">Nothing has this name.</p>}
      </div>
      <p className="soft small keys">
        <kbd>↑</kbd> <kbd>↓</kbd> choose · <kbd>Enter</kbd> open · <kbd>Esc</kbd> close · in lists <kbd>j</kbd>{" "}
        <kbd>k</kbd>
      </p>
    </dialog>
  );
}

function useEntries(text: string): Entry[] {
  const navigate = useNavigate();
  const mayCreate = useMay("deployments:create");
  const mayManage = useMay("organization:manage");
  const mayReadLog = useMay("workspaces:manage") || mayManage;

  const query = useApi(
    "GET /v2/deployments",
    { query: { name_contains: text.trim().toLowerCase(), limit: SHOWN } },
    { keep: true, enabled: useMay("deployments:read") },
  );

  const others = useFound(text);

  return useMemo(() => {
    const go = (to: string) => () => void navigate({ to });
    const fixed: Entry[] = [
      { id: "home", title: "Home", detail: "place", icon: "home", run: go("/") },
      { id: "deployments", title: "Deployments", detail: "place", icon: "deployments", run: go("/deployments") },
      { id: "inbox", title: "Inbox", detail: "place", icon: "inbox", run: go("/inbox") },
      { id: "agents", title: "Agents", detail: "place", icon: "agents", run: go("/agents") },
      { id: "annotation", title: "Annotation", detail: "place", icon: "annotation", run: go("/annotation") },
      { id: "datasets", title: "Datasets", detail: "place", icon: "datasets", run: go("/datasets") },
      { id: "traces", title: "Traces", detail: "place", icon: "traces", run: go("/traces") },
      { id: "figures", title: "Figures", detail: "place", icon: "figures", run: go("/figures") },
      { id: "usage", title: "Usage", detail: "place", icon: "usage", run: go("/usage") },
      { id: "prices", title: "Prices", detail: "place", icon: "prices", run: go("/prices") },
      { id: "prompts", title: "Prompts", detail: "place", icon: "prompts", run: go("/prompts") },
      { id: "people", title: "People", detail: "place", icon: "person", run: go("/people") },
      { id: "keys", title: "API keys", detail: "place", icon: "key", run: go("/people/keys") },
      ...(mayReadLog
        ? [{ id: "audit", title: "Audit log", detail: "place", icon: "log", run: go("/audit") } as Entry]
        : []),
      ...(mayManage
        ? [{ id: "alerts", title: "Alerts", detail: "place", icon: "bell", run: go("/alerts") } as Entry]
        : []),
      { id: "system", title: "System", detail: "place", icon: "system", run: go("/system") },
      { id: "help", title: "Help", detail: "documentation", icon: "help", run: () => void open("/help/", "_blank") },
      {
        id: "theme",
        title: "Switch between light and dark",
        detail: "setting",
        icon: "moon",
        run: () => setPreferences({ theme: preferences().theme === "dark" ? "light" : "dark" }),
      },
      {
        id: "zone",
        title: "Switch between local time and UTC",
        detail: "setting",
        icon: "clock",
        run: () => setPreferences({ zone: preferences().zone === "utc" ? "local" : "utc" }),
      },
    ];

    if (mayCreate) {
      fixed.splice(3, 0, {
        id: "new",
        title: "New deployment",
        detail: "action",
        icon: "plus",
        run: go("/deployments/new"),
      });
    }

    const deployments: Entry[] = (query.data?.resources ?? []).flatMap((each) => [
      {
        id: each.id,
        title: each.name,
        detail: "deployment",
        icon: "deployments",
        run: go(`/deployments/${each.id}`),
      },
      ...(each.active_revision_id
        ? [
            {
              id: `studio-${each.id}`,
              title: `${each.name}: studio`,
              detail: "agent",
              icon: "agents" as const,
              run: go(`/agents/${each.id}/studio`),
            },
          ]
        : []),
    ]);

    const words = text.trim().toLowerCase();
    const matches = fixed.filter((entry) => ownAgent === null || OF_AGENT.has(entry.id));
    const matching = matches.filter((entry) => entry.title.toLowerCase().includes(words));

    return [...matching, ...deployments, ...others].slice(0, SHOWN);
  }, [navigate, mayCreate, mayManage, mayReadLog, query.data, others, text]);
}

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const FOUND = 5;
const LEAST_CHARS = 2;
const ANSWERS_WITHIN_MS = 5_000;

// What has this name or this id.
function useFound(typed: string): Entry[] {
  const navigate = useNavigate();
  const text = typed.trim();
  const isId = ID.test(text);
  const isName = ownAgent === null && !isId && text.length >= LEAST_CHARS;
  const query = { name_contains: text, limit: FOUND };
  const mayReadRuns = useMay("runs:read");
  const datasets = useApi("GET /datasets", { query }, { enabled: useMay("datasets:read") && isName }).data;

  const projects = useApi("GET /sessions", { query }, { enabled: useMay("projects:read") && isName }).data;
  const prompts = useApi(
    "GET /repos",
    { query: { query: text, limit: FOUND } },
    { enabled: useMay("prompts:read") && isName },
  ).data;

  const run = useApi(
    "GET /v2/runs/{run_id}",
    { path: { run_id: text }, query: { selects: ["NAME", "TRACE_ID"] } },
    { enabled: ownAgent === null && isId && mayReadRuns },
  ).data;

  const threads = useThreadsWithId(isId ? text : null);

  return useMemo(() => {
    const go = (to: string) => () => void navigate({ to });
    const entries: Entry[] = threads.map(({ agent, threadId }) => ({
      id: `thread-${agent.id}`,
      title: `Thread ${threadId.slice(-8)}`,
      detail: `of ${agent.name}`,
      icon: "agents",
      run: go(`/agents/${agent.id}/threads/${threadId}`),
    }));

    if (run) {
      const isTrace = run.trace_id === text;
      entries.push({
        id: "run",
        title: `${run.name ?? "Run"} ${text.slice(-8)}`,
        detail: isTrace ? "trace" : "run",
        icon: "traces",
        run: () => void navigate({ to: "/traces", search: { run: text } }),
      });
    }

    for (const each of isName ? (projects ?? []) : []) {
      const run = go(`/traces/${each.id}`);
      entries.push({ id: `project-${each.id}`, title: each.name, detail: "traces", icon: "traces", run });
    }

    for (const each of isName ? (datasets ?? []) : []) {
      const run = go(`/datasets/${each.id}`);
      entries.push({ id: `dataset-${each.id}`, title: each.name, detail: "dataset", icon: "datasets", run });
    }

    for (const each of isName ? (prompts?.repos ?? []) : []) {
      const run = go(`/prompts/${each.repo_handle}`);
      entries.push({ id: `prompt-${each.id}`, title: each.repo_handle, detail: "prompt", icon: "prompts", run });
    }

    return entries;
  }, [navigate, threads, run, projects, datasets, prompts, text, isName]);
}

interface FoundThread {
  agent: Agent;
  threadId: string;
}

const NO_THREADS: FoundThread[] = [];

// Every agent that is awake is asked; those that do not answer soon have no part in it.
function useThreadsWithId(threadId: string | null): FoundThread[] {
  const workspace = useWorkspaceId();
  const agents = (useAgents().agents ?? []).filter((each) => !each.isAsleep);
  const query = useQuery({
    queryKey: [workspace, "thread of any agent", threadId, agents.map((each) => each.id)],
    enabled: threadId !== null,
    queryFn: async ({ signal }) => {
      const body = { ids: [threadId ?? ""], limit: 1, select: ["thread_id" as const] };
      const within = AbortSignal.any([signal, AbortSignal.timeout(ANSWERS_WITHIN_MS)]);
      const searches = agents.map((agent) => callAgent(agent.id, "POST /threads/search", { body }, within));
      const answers = await Promise.allSettled(searches);

      return agents.flatMap((agent, index): FoundThread[] => {
        const answer = answers[index];
        return answer?.status === "fulfilled" && answer.value.length > 0 ? [{ agent, threadId: threadId ?? "" }] : [];
      });
    },
  });

  return query.data ?? NO_THREADS;
}
