import {
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  Navigate,
  Outlet,
  retainSearchParams,
  useMatch,
} from "@tanstack/react-router";
import { ownAgent } from "./api/server";
import { HomePage } from "./pages/home/HomePage";
import { FILTER_FIELDS } from "./pages/traces/fields";
import { Shell } from "./shell/Shell";
import { SessionProvider } from "./shell/session";
import { Empty } from "./ui/Empty";

// The search of the address, with texts only: what a page does not know is left out.
function texts<N extends string>(...names: N[]) {
  return (search: Record<string, unknown>): { [P in N]?: string } => {
    const params: { [P in N]?: string } = {};
    for (const name of names) {
      const value = search[name];
      if (value !== undefined && value !== "") params[name] = String(value);
    }

    return params;
  };
}

const root = createRootRoute({
  validateSearch: texts("workspace"),
  search: { middlewares: [retainSearchParams(["workspace"])] },
  component: Frame,
  notFoundComponent: () => (
    <Empty title="There is no such page">The address may be misspelled, or of another version of the console.</Empty>
  ),
});

// A shared trace has a page of its own: people who follow its link may have no account.
const sharedRoute = createRoute({
  getParentRoute: () => root,
  path: "/shared/$shareToken",
  validateSearch: texts("run", "tab"),
  component: lazyRouteComponent(() => import("./pages/shared/SharedPage"), "SharedPage"),
});

function Frame() {
  if (useMatch({ from: "/shared/$shareToken", shouldThrow: false })) return <Outlet />;

  return (
    <SessionProvider>
      <Shell />
    </SessionProvider>
  );
}

const AgentsHome = () => <Navigate to="/agents" replace />;

const home = createRoute({
  getParentRoute: () => root,
  path: "/",
  component: ownAgent === null ? HomePage : AgentsHome,
});

const deploymentsRoute = createRoute({
  getParentRoute: () => root,
  path: "/deployments",
  validateSearch: texts("q", "status"),
  component: lazyRouteComponent(() => import("./pages/deployments/DeploymentsPage"), "DeploymentsPage"),
});

const newDeployment = createRoute({
  getParentRoute: () => root,
  path: "/deployments/new",
  component: lazyRouteComponent(() => import("./pages/deployments/NewDeploymentPage"), "NewDeploymentPage"),
});

const deploymentRoute = createRoute({
  getParentRoute: () => root,
  path: "/deployments/$deploymentId",
  component: lazyRouteComponent(() => import("./pages/deployment/DeploymentPage"), "DeploymentPage"),
});

const revisionsTab = createRoute({
  getParentRoute: () => deploymentRoute,
  path: "/",
  component: lazyRouteComponent(() => import("./pages/deployment/RevisionsTab"), "RevisionsTab"),
});

const activityTab = createRoute({
  getParentRoute: () => deploymentRoute,
  path: "/activity",
  component: lazyRouteComponent(() => import("./pages/deployment/ActivityTab"), "ActivityTab"),
});

const logTab = createRoute({
  getParentRoute: () => deploymentRoute,
  path: "/log",
  validateSearch: texts("q", "level"),
  component: lazyRouteComponent(() => import("./pages/deployment/LogTab"), "LogTab"),
});

const settingsTab = createRoute({
  getParentRoute: () => deploymentRoute,
  path: "/settings",
  component: lazyRouteComponent(() => import("./pages/deployment/SettingsTab"), "SettingsTab"),
});

const revisionRoute = createRoute({
  getParentRoute: () => root,
  path: "/deployments/$deploymentId/revisions/$revisionId",
  validateSearch: texts("log", "q", "level"),
  component: lazyRouteComponent(() => import("./pages/revision/RevisionPage"), "RevisionPage"),
});

const inboxRoute = createRoute({
  getParentRoute: () => root,
  path: "/inbox",
  validateSearch: texts("thread"),
  component: lazyRouteComponent(() => import("./pages/inbox/InboxPage"), "InboxPage"),
});

const agents = createRoute({
  getParentRoute: () => root,
  path: "/agents",
  component: lazyRouteComponent(() => import("./pages/agents/AgentsPage"), "AgentsPage"),
});

const agentRoute = createRoute({
  getParentRoute: () => root,
  path: "/agents/$deploymentId",
  component: lazyRouteComponent(() => import("./pages/agents/AgentLayout"), "AgentLayout"),
});

const studioRoute = createRoute({
  getParentRoute: () => agentRoute,
  path: "/studio",
  validateSearch: texts("assistant", "thread", "checkpoint", "panel"),
  component: lazyRouteComponent(() => import("./pages/studio/StudioPage"), "StudioPage"),
});

const threadsRoute = createRoute({
  getParentRoute: () => agentRoute,
  path: "/threads",
  validateSearch: texts("q", "status", "sort"),
  component: lazyRouteComponent(() => import("./pages/threads/ThreadsPage"), "ThreadsPage"),
});

const threadRoute = createRoute({
  getParentRoute: () => agentRoute,
  path: "/threads/$threadId",
  validateSearch: texts("view", "checkpoint", "against"),
  component: lazyRouteComponent(() => import("./pages/threads/ThreadPage"), "ThreadPage"),
});

const runQueueRoute = createRoute({
  getParentRoute: () => agentRoute,
  path: "/queue",
  validateSearch: texts("view", "assistant", "run", "thread"),
  component: lazyRouteComponent(() => import("./pages/queue/QueuePage"), "QueuePage"),
});

const cronsRoute = createRoute({
  getParentRoute: () => agentRoute,
  path: "/crons",
  validateSearch: texts("assistant", "thread", "state", "cron", "edit"),
  component: lazyRouteComponent(() => import("./pages/crons/CronsPage"), "CronsPage"),
});

const storeRoute = createRoute({
  getParentRoute: () => agentRoute,
  path: "/store",
  validateSearch: texts("namespace", "q", "offset", "in", "key"),
  component: lazyRouteComponent(() => import("./pages/store/StorePage"), "StorePage"),
});

const tracesRoute = createRoute({
  getParentRoute: () => root,
  path: "/traces",
  validateSearch: texts("q", "run"),
  component: lazyRouteComponent(() => import("./pages/traces/ProjectsPage"), "ProjectsPage"),
});

const projectRoute = createRoute({
  getParentRoute: () => root,
  path: "/traces/$projectId",
  validateSearch: texts("view", ...FILTER_FIELDS),
  component: lazyRouteComponent(() => import("./pages/traces/ProjectPage"), "ProjectPage"),
});

const traceRoute = createRoute({
  getParentRoute: () => root,
  path: "/traces/$projectId/$traceId",
  validateSearch: texts("run", "view", "tab"),
  component: lazyRouteComponent(() => import("./pages/trace/TracePage"), "TracePage"),
});

const conversationRoute = createRoute({
  getParentRoute: () => root,
  path: "/traces/$projectId/threads/$threadId",
  component: lazyRouteComponent(() => import("./pages/traces/ConversationPage"), "ConversationPage"),
});

const datasetsRoute = createRoute({
  getParentRoute: () => root,
  path: "/datasets",
  validateSearch: texts("q"),
  component: lazyRouteComponent(() => import("./pages/datasets/DatasetsPage"), "DatasetsPage"),
});

const newDataset = createRoute({
  getParentRoute: () => root,
  path: "/datasets/new",
  component: lazyRouteComponent(() => import("./pages/datasets/NewDatasetPage"), "NewDatasetPage"),
});

const datasetRoute = createRoute({
  getParentRoute: () => root,
  path: "/datasets/$datasetId",
  validateSearch: texts("view", "q", "split", "as_of", "example", "from", "to"),
  component: lazyRouteComponent(() => import("./pages/dataset/DatasetPage"), "DatasetPage"),
});

const compareRoute = createRoute({
  getParentRoute: () => root,
  path: "/datasets/$datasetId/compare",
  validateSearch: texts("experiments", "only"),
  component: lazyRouteComponent(() => import("./pages/dataset/ComparePage"), "ComparePage"),
});

const queues = createRoute({
  getParentRoute: () => root,
  path: "/annotation",
  component: lazyRouteComponent(() => import("./pages/annotation/QueuesPage"), "QueuesPage"),
});

const newQueue = createRoute({
  getParentRoute: () => root,
  path: "/annotation/new",
  component: lazyRouteComponent(() => import("./pages/annotation/QueueForm"), "NewQueuePage"),
});

const queueRoute = createRoute({
  getParentRoute: () => root,
  path: "/annotation/$queueId",
  validateSearch: texts("run"),
  component: lazyRouteComponent(() => import("./pages/annotation/QueuePage"), "QueuePage"),
});

const editQueueRoute = createRoute({
  getParentRoute: () => root,
  path: "/annotation/$queueId/edit",
  component: lazyRouteComponent(() => import("./pages/annotation/QueueForm"), "EditQueuePage"),
});

const usageRoute = createRoute({
  getParentRoute: () => root,
  path: "/usage",
  validateSearch: texts("by", "range", "since", "until"),
  component: lazyRouteComponent(() => import("./pages/usage/UsagePage"), "UsagePage"),
});

const pricesRoute = createRoute({
  getParentRoute: () => root,
  path: "/prices",
  validateSearch: texts("q"),
  component: lazyRouteComponent(() => import("./pages/prices/PricesPage"), "PricesPage"),
});

const figuresRoute = createRoute({
  getParentRoute: () => root,
  path: "/figures",
  validateSearch: texts("project", "range", "step"),
  component: lazyRouteComponent(() => import("./pages/figures/FiguresPage"), "FiguresPage"),
});

const promptsRoute = createRoute({
  getParentRoute: () => root,
  path: "/prompts",
  validateSearch: texts("q", "archived"),
  component: lazyRouteComponent(() => import("./pages/prompts/PromptsPage"), "PromptsPage"),
});

const newPrompt = createRoute({
  getParentRoute: () => root,
  path: "/prompts/new",
  component: lazyRouteComponent(() => import("./pages/prompts/NewPromptPage"), "NewPromptPage"),
});

const promptRoute = createRoute({
  getParentRoute: () => root,
  path: "/prompts/$promptName",
  validateSearch: texts("view", "commit", "against", "edit"),
  component: lazyRouteComponent(() => import("./pages/prompts/PromptPage"), "PromptPage"),
});

const auditRoute = createRoute({
  getParentRoute: () => root,
  path: "/audit",
  validateSearch: texts("actor", "action", "object", "outcome", "period", "since", "until", "entry"),
  component: lazyRouteComponent(() => import("./pages/audit/AuditPage"), "AuditPage"),
});

const alertsRoute = createRoute({
  getParentRoute: () => root,
  path: "/alerts",
  validateSearch: texts("tab"),
  component: lazyRouteComponent(() => import("./pages/alerts/AlertsPage"), "AlertsPage"),
});

const people = createRoute({
  getParentRoute: () => root,
  path: "/people",
  component: lazyRouteComponent(() => import("./pages/people/PeoplePage"), "PeoplePage"),
});

const membersTab = createRoute({
  getParentRoute: () => people,
  path: "/",
  validateSearch: texts("add"),
  component: lazyRouteComponent(() => import("./pages/people/MembersTab"), "MembersTab"),
});

const keysTab = createRoute({
  getParentRoute: () => people,
  path: "/keys",
  validateSearch: texts("add"),
  component: lazyRouteComponent(() => import("./pages/people/KeysTab"), "KeysTab"),
});

const sessionsTab = createRoute({
  getParentRoute: () => people,
  path: "/sessions",
  component: lazyRouteComponent(() => import("./pages/people/SessionsTab"), "SessionsTab"),
});

const rolesTab = createRoute({
  getParentRoute: () => people,
  path: "/roles",
  component: lazyRouteComponent(() => import("./pages/people/RolesTab"), "RolesTab"),
});

const system = createRoute({
  getParentRoute: () => root,
  path: "/system",
  component: lazyRouteComponent(() => import("./pages/system/SystemPage"), "SystemPage"),
});

const healthTab = createRoute({
  getParentRoute: () => system,
  path: "/",
  component: lazyRouteComponent(() => import("./pages/system/HealthTab"), "HealthTab"),
});

const gitTab = createRoute({
  getParentRoute: () => system,
  path: "/git",
  validateSearch: texts("add"),
  component: lazyRouteComponent(() => import("./pages/system/GitTab"), "GitTab"),
});

const backupsTab = createRoute({
  getParentRoute: () => system,
  path: "/backups",
  component: lazyRouteComponent(() => import("./pages/system/BackupsTab"), "BackupsTab"),
});

const upgradeTab = createRoute({
  getParentRoute: () => system,
  path: "/upgrade",
  component: lazyRouteComponent(() => import("./pages/system/UpgradeTab"), "UpgradeTab"),
});

const diskTab = createRoute({
  getParentRoute: () => system,
  path: "/disk",
  component: lazyRouteComponent(() => import("./pages/system/DiskTab"), "DiskTab"),
});

const doctorTab = createRoute({
  getParentRoute: () => system,
  path: "/doctor",
  component: lazyRouteComponent(() => import("./pages/system/DoctorTab"), "DoctorTab"),
});

const systemSettingsTab = createRoute({
  getParentRoute: () => system,
  path: "/settings",
  validateSearch: texts("q", "show"),
  component: lazyRouteComponent(() => import("./pages/system/SettingsTab"), "SettingsTab"),
});

const routeTree = root.addChildren([
  home,
  deploymentsRoute,
  newDeployment,
  deploymentRoute.addChildren([revisionsTab, activityTab, logTab, settingsTab]),
  revisionRoute,
  agents,
  inboxRoute,
  tracesRoute,
  projectRoute,
  traceRoute,
  conversationRoute,
  sharedRoute,
  datasetsRoute,
  newDataset,
  datasetRoute,
  compareRoute,
  queues,
  newQueue,
  queueRoute,
  editQueueRoute,
  figuresRoute,
  usageRoute,
  pricesRoute,
  agentRoute.addChildren([studioRoute, threadsRoute, threadRoute, runQueueRoute, cronsRoute, storeRoute]),
  promptsRoute,
  newPrompt,
  promptRoute,
  auditRoute,
  alertsRoute,
  people.addChildren([membersTab, keysTab, sessionsTab, rolesTab]),
  system.addChildren([healthTab, gitTab, backupsTab, upgradeTab, diskTab, doctorTab, systemSettingsTab]),
]);

export const router = createRouter({
  routeTree,
  basepath: "/console",
  defaultPreload: "intent",
  scrollRestoration: true,
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
