import { Link, useMatches } from "@tanstack/react-router";
import { useEffect } from "react";
import { useApi } from "../api/queries";
import { ownAgent } from "../api/server";

const ADMINISTERED: Record<string, string> = {
  "/audit": "Audit log",
  "/alerts": "Alerts",
  "/people/keys": "API keys",
  "/people/sessions": "Sessions",
  "/people/roles": "Roles",
  "/system/git": "Git hosts",
  "/system/backups": "Backups",
  "/system/upgrade": "Upgrade",
  "/system/disk": "Disk",
  "/system/doctor": "Doctor",
  "/system/settings": "Settings",
};

// The address in words. Every part leads to the page of its own.
export function Breadcrumb() {
  const matches = useMatches();
  const params = matches.at(-1)?.params as
    | {
        deploymentId?: string;
        revisionId?: string;
        threadId?: string;
        projectId?: string;
        traceId?: string;
        datasetId?: string;
        queueId?: string;
        promptName?: string;
      }
    | undefined;

  const path = matches.at(-1)?.pathname ?? "/";
  const deployment = useApi(
    "GET /v2/deployments/{deployment_id}",
    { path: { deployment_id: params?.deploymentId ?? "" } },
    { enabled: params?.deploymentId !== undefined && ownAgent === null },
  );

  const name = deployment.data?.display_name ?? deployment.data?.name ?? params?.deploymentId?.slice(-8);
  const project = useApi(
    "GET /sessions/{session_id}",
    { path: { session_id: params?.projectId ?? "" } },
    { enabled: params?.projectId !== undefined },
  );

  const dataset = useApi(
    "GET /datasets/{dataset_id}",
    { path: { dataset_id: params?.datasetId ?? "" } },
    { enabled: params?.datasetId !== undefined },
  );

  const queue = useApi(
    "GET /annotation-queues/{queue_id}",
    { path: { queue_id: params?.queueId ?? "" } },
    { enabled: params?.queueId !== undefined },
  );

  const parts: { to: string; title: string }[] = [{ to: "/", title: "Home" }];
  if (path.startsWith("/deployments")) parts.push({ to: "/deployments", title: "Deployments" });
  if (path === "/deployments/new") parts.push({ to: path, title: "New" });

  for (const place of ["Inbox", "Figures", "Usage", "Prices"]) {
    if (path === `/${place.toLowerCase()}`) parts.push({ to: path, title: place });
  }

  if (path.startsWith("/agents")) parts.push({ to: "/agents", title: "Agents" });

  if (path.startsWith("/agents/") && params?.deploymentId && name) {
    const agent = `/agents/${params.deploymentId}`;
    const page = path.split("/")[3] ?? "";
    if (ownAgent === null) parts.push({ to: `/deployments/${params.deploymentId}`, title: name });
    parts.push({ to: `${agent}/${page}`, title: `${page.charAt(0).toUpperCase()}${page.slice(1)}` });
    if (params.threadId) parts.push({ to: path, title: params.threadId.slice(-8) });
  } else if (params?.deploymentId && name) {
    parts.push({ to: `/deployments/${params.deploymentId}`, title: name });

    if (params.revisionId) {
      parts.push({
        to: `/deployments/${params.deploymentId}/revisions/${params.revisionId}`,
        title: `Revision ${params.revisionId.slice(-8)}`,
      });
    } else if (path.endsWith("/log")) parts.push({ to: path, title: "Log" });
    else if (path.endsWith("/settings")) parts.push({ to: path, title: "Settings" });
  }

  if (path.startsWith("/traces")) parts.push({ to: "/traces", title: "Traces" });

  if (params?.projectId) {
    parts.push({ to: `/traces/${params.projectId}`, title: project.data?.name ?? params.projectId.slice(-8) });
    if (params.traceId) parts.push({ to: path, title: `Trace ${params.traceId.slice(-8)}` });
    else if (params.threadId) parts.push({ to: path, title: `Conversation ${params.threadId.slice(-8)}` });
  }

  if (path.startsWith("/datasets")) parts.push({ to: "/datasets", title: "Datasets" });
  if (path === "/datasets/new") parts.push({ to: path, title: "New" });

  if (params?.datasetId) {
    parts.push({ to: `/datasets/${params.datasetId}`, title: dataset.data?.name ?? params.datasetId.slice(-8) });
    if (path.endsWith("/compare")) parts.push({ to: path, title: "Results" });
  }

  if (path.startsWith("/annotation")) parts.push({ to: "/annotation", title: "Annotation" });
  if (path === "/annotation/new") parts.push({ to: path, title: "New" });

  if (params?.queueId) {
    parts.push({ to: `/annotation/${params.queueId}`, title: queue.data?.name ?? params.queueId.slice(-8) });
    if (path.endsWith("/edit")) parts.push({ to: path, title: "Edit" });
  }

  const administered = ADMINISTERED[path];
  if (path.startsWith("/people")) parts.push({ to: "/people", title: "People" });
  if (path.startsWith("/system")) parts.push({ to: "/system", title: "System" });
  if (path.startsWith("/prompts")) parts.push({ to: "/prompts", title: "Prompts" });

  if (path === "/prompts/new") parts.push({ to: path, title: "New" });
  else if (params?.promptName) parts.push({ to: path, title: params.promptName });
  else if (administered) parts.push({ to: path, title: administered });

  const visibleParts = parts.length > 1 ? parts.slice(1) : parts;
  const title = visibleParts.map((part) => part.title).reverse();
  useEffect(() => {
    document.title = [...title, "Portside"].join(" · ");
  });

  return (
    <nav aria-label="Breadcrumb" className="breadcrumb">
      <ol>
        {visibleParts.map((part, index) => (
          <li key={part.to}>
            <Link
              to={part.to}
              activeOptions={{ exact: true }}
              className={index === visibleParts.length - 1 ? "current" : ""}
              aria-current={index === visibleParts.length - 1 ? "page" : undefined}
            >
              {part.title}
            </Link>
          </li>
        ))}
      </ol>
    </nav>
  );
}
