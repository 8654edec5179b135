// Written by `make generate` from the OpenAPI document; edit the routes.

export type ApiMetrics = { http_requests_total: (Record<string, string | number>)[] };

export type Assistant = { assistant_id: string; graph_id: string; name: string; description: string | null; config: Record<string, unknown>; context: Record<string, unknown>; metadata: Record<string, unknown>; version: number; created_at: string; updated_at: string };

export type AssistantConfig = { tags?: (string)[] | null; recursion_limit?: number | null; configurable?: Record<string, unknown> | null };

export type AssistantCreate = { graph_id: string; assistant_id?: string | null; config?: AssistantConfig | null; context?: Record<string, unknown> | null; metadata?: Record<string, unknown> | null; name?: string | null; description?: string | null; if_exists?: "do_nothing" | "raise" | null };

export type AssistantFilter = { metadata?: Record<string, unknown> | null; graph_id?: string | null; name?: string | null };

export type AssistantPatch = { graph_id?: string | null; config?: AssistantConfig | null; context?: Record<string, unknown> | null; metadata?: Record<string, unknown> | null; name?: string | null; description?: string | null };

export type AssistantSearch = { metadata?: Record<string, unknown> | null; graph_id?: string | null; name?: string | null; limit?: number | null; offset?: number | null; sort_by?: "assistant_id" | "created_at" | "graph_id" | "name" | "updated_at" | null; sort_order?: "asc" | "desc" | null; select?: ("assistant_id" | "config" | "context" | "created_at" | "description" | "graph_id" | "metadata" | "name" | "updated_at" | "version")[] | null };

export type AssistantVersion = { assistant_id: string; graph_id: string; name: string; description: string | null; config: Record<string, unknown>; context: Record<string, unknown>; metadata: Record<string, unknown>; version: number; created_at: string };

export type Backlog = { n_pending?: number | null; n_running?: number | null; pending_runs_wait_time_max_secs?: number | null; pending_runs_wait_time_med_secs?: number | null; pending_unblocked_runs_wait_time_max_secs?: number | null };

export type CancelMany = { status?: "all" | "pending" | "running" | null; thread_id?: string | null; run_ids?: (string)[] | null };

export type ChannelSpace = { versions: number; bytes: number };

export type ChannelValuesSpace = { count: number; bytes: number; by_channel: Record<string, ChannelSpace> };

export type Checkpoint = { checkpoint_id?: string | null; checkpoint_ns?: string | null; thread_id?: string | null; checkpoint_map?: Record<string, unknown> | null };

export type Command = { update?: unknown; resume?: unknown; goto?: unknown };

export type CommandFailed = { type?: "error"; id: number | string | null; error: string; message: string };

export type ComponentRequest = { name: string };

export type Cron = { cron_id: string; assistant_id: string; thread_id: string | null; user_id: string; end_time: string | null; schedule: string; timezone: string | null; payload: Record<string, unknown>; next_run_date: string | null; metadata: Record<string, unknown>; on_run_completed: "delete" | "keep" | null; is_enabled: boolean; enabled: boolean; created_at: string; updated_at: string; skipped_count: number };

export type CronCreate = { input?: unknown; metadata?: Record<string, unknown> | null; config?: RunConfig | null; context?: Record<string, unknown> | null; interrupt_before?: "*" | (string)[] | null; interrupt_after?: "*" | (string)[] | null; stream_mode?: "values" | "messages" | "messages-tuple" | "updates" | "events" | "tasks" | "checkpoints" | "debug" | "custom" | ("values" | "messages" | "messages-tuple" | "updates" | "events" | "tasks" | "checkpoints" | "debug" | "custom")[] | null; stream_subgraphs?: boolean | null; stream_resumable?: boolean | null; durability?: "async" | "exit" | "sync" | null; checkpoint_during?: boolean | null; webhook?: string | null; is_enabled?: boolean | null; timezone?: string | null; assistant_id: string; schedule: string; cron_id?: string | null; end_time?: string | null; on_run_completed?: "delete" | "keep" | null };

export type CronFilter = { assistant_id?: string | null; thread_id?: string | null; is_enabled?: boolean | null; metadata?: Record<string, unknown> | null };

export type CronPatch = { input?: unknown; metadata?: Record<string, unknown> | null; config?: RunConfig | null; context?: Record<string, unknown> | null; interrupt_before?: "*" | (string)[] | null; interrupt_after?: "*" | (string)[] | null; stream_mode?: "values" | "messages" | "messages-tuple" | "updates" | "events" | "tasks" | "checkpoints" | "debug" | "custom" | ("values" | "messages" | "messages-tuple" | "updates" | "events" | "tasks" | "checkpoints" | "debug" | "custom")[] | null; stream_subgraphs?: boolean | null; stream_resumable?: boolean | null; durability?: "async" | "exit" | "sync" | null; checkpoint_during?: boolean | null; webhook?: string | null; is_enabled?: boolean | null; timezone?: string | null; assistant_id?: string | null; schedule?: string | null; end_time?: string | null; on_run_completed?: "delete" | "keep" | null; multitask_strategy?: "enqueue" | "interrupt" | "reject" | "rollback" | null };

export type CronPreview = { schedule: string; timezone?: string | null; end_time?: string | null; count?: number | null };

export type CronSearch = { assistant_id?: string | null; thread_id?: string | null; is_enabled?: boolean | null; metadata?: Record<string, unknown> | null; limit?: number | null; offset?: number | null; sort_by?: "assistant_id" | "created_at" | "cron_id" | "end_time" | "next_run_date" | "thread_id" | "updated_at" | null; sort_order?: "asc" | "desc" | null; select?: ("assistant_id" | "created_at" | "cron_id" | "enabled" | "end_time" | "is_enabled" | "metadata" | "next_run_date" | "on_run_completed" | "payload" | "schedule" | "skipped_count" | "thread_id" | "timezone" | "updated_at" | "user_id")[] | null };

export type CronTimes = { timezone: string; next_run_dates: (string)[] };

export type DeliveryAttempt = { at: string; duration_ms: number; status_code?: number | null; reason?: string | null };

export type Drawing = { nodes: (Record<string, unknown>)[]; edges: (Record<string, unknown>)[] };

export type ErrorBody = { detail: string; error?: string | null };

export type FoundItem = { namespace: (string)[]; key: string; value: unknown; created_at: string; updated_at: string; ttl?: number; expires_at?: string; score: number | null };

export type FoundItems = { items: (FoundItem)[] };

export type FoundRun = { run_id: string; thread_id: string; assistant_id: string; cron_id: string | null; status: "error" | "interrupted" | "pending" | "running" | "success" | "timeout"; multitask_strategy: string; is_temporary: boolean; created_at: string; started_at: string | null; updated_at: string; attempt: number; lost_attempts: number; worker_id: string | null; waits_for: "slot" | "thread" | "time" | null; blocked_by: string | null; run_after: string; error: Record<string, unknown> | null; cancel_reason: string | null };

export type GraphSchemas = { input_schema: Record<string, unknown> | null; output_schema: Record<string, unknown> | null; state_schema: Record<string, unknown> | null; config_schema: Record<string, unknown> | null; context_schema: Record<string, unknown> | null; graph_id: string };

export type Health = { ok: boolean; services: Record<string, boolean>; problems?: Record<string, string> };

export type HeapDump = { path: string; bytes: number };

export type HistorySearch = { limit?: number | null; before?: string | Record<string, unknown> | null; metadata?: Record<string, unknown> | null; checkpoint?: Checkpoint | null; select?: (string)[] | null };

export type Host = { kind: string; project_id: string | null; host_revision_id: string | null; revision_id: string | null; tenant_id: string | null };

export type ImportedState = { checkpoint_id: string; created_at: string; parent_checkpoint_id?: string | null; metadata?: Record<string, unknown>; next?: (string)[]; tasks?: (ImportedTask)[]; values?: Record<string, unknown>; appended?: Record<string, (unknown)[]>; removed?: (string)[] };

export type ImportedTask = { name: string; result?: unknown; interrupts?: (Record<string, unknown>)[]; error?: unknown };

export type Info = { version: string; langgraph_py_version: string; flags: Record<string, boolean>; host: Host };

export type ItemDelete = { key: string; namespace?: (string)[] | null };

export type ItemPut = { namespace: (string)[]; key: string; value: Record<string, unknown>; index?: false | (string)[] | null; ttl?: number | null };

export type ItemSearch = { namespace_prefix?: (string)[] | null; filter?: Record<string, unknown> | null; limit?: number | null; offset?: number | null; query?: string | null; refresh_ttl?: boolean | null };

export type Json = unknown;

export type LangSmithTracer = { project_name?: string | null; example_id?: string | null };

export type LatestVersion = { version?: number | null };

export type ListedRun = { run_id?: string; thread_id?: string; assistant_id?: string; metadata?: Record<string, unknown>; status?: "error" | "interrupted" | "pending" | "running" | "success" | "timeout"; kwargs?: Record<string, unknown>; multitask_strategy?: string; created_at?: string; updated_at?: string; error?: Record<string, unknown> | null; cancel_reason?: string | null; langsmith_session_name?: string | null };

export type Metrics = { queue: Backlog; api: ApiMetrics; workers: Slots; problems?: (string)[]; idle_s?: number | null; threads_by_revision?: Record<string, number> | null };

export type NamedCheckpoint = { checkpoint: Checkpoint; configurable: Checkpoint; checkpoint_id: string | null };

export type NamespaceSearch = { prefix?: (string)[] | null; suffix?: (string)[] | null; max_depth?: number | null; limit?: number | null; offset?: number | null };

export type Namespaces = { namespaces: ((string)[])[] };

export type NodeUpdate = { as_node: string; values?: Record<string, unknown> | (unknown)[] | null; command?: Record<string, unknown> | null };

export type Problem = { loc: (string | number)[]; msg: string; type: string };

export type Pruned = { pruned_count: number };

export type Run = { run_id: string; thread_id: string; assistant_id: string; metadata: Record<string, unknown>; status: "error" | "interrupted" | "pending" | "running" | "success" | "timeout"; kwargs: Record<string, unknown>; multitask_strategy: string; created_at: string; updated_at: string; error: Record<string, unknown> | null; cancel_reason: string | null; langsmith_session_name?: string | null };

export type RunConfig = { tags?: (string)[] | null; recursion_limit?: number | null; configurable?: Record<string, unknown> | null; metadata?: Record<string, unknown> | null };

export type RunCreate = { assistant_id: string; input?: unknown; command?: Command | null; metadata?: Record<string, unknown> | null; config?: RunConfig | null; context?: Record<string, unknown> | null; interrupt_before?: "*" | (string)[] | null; interrupt_after?: "*" | (string)[] | null; stream_mode?: "values" | "messages" | "messages-tuple" | "updates" | "events" | "tasks" | "checkpoints" | "debug" | "custom" | ("values" | "messages" | "messages-tuple" | "updates" | "events" | "tasks" | "checkpoints" | "debug" | "custom")[] | null; stream_subgraphs?: boolean | null; stream_resumable?: boolean | null; multitask_strategy?: "enqueue" | "interrupt" | "reject" | "rollback" | null; on_not_exist?: "create" | "reject" | null; on_completion?: "delete" | "keep" | null; on_disconnect?: "cancel" | "continue" | null; after_seconds?: number | null; checkpoint?: Checkpoint | null; checkpoint_id?: string | null; durability?: "async" | "exit" | "sync" | null; checkpoint_during?: boolean | null; webhook?: string | null; feedback_keys?: (string)[] | null; strict_resume?: boolean | null; langsmith_tracer?: LangSmithTracer | null };

export type RunSearch = { status?: ("error" | "interrupted" | "pending" | "running" | "success" | "timeout")[] | null; assistant_id?: string | null; thread_id?: string | null; cron_id?: string | null; run_id?: string | null; limit?: number | null; offset?: number | null };

export type Schemas = { input_schema: Record<string, unknown> | null; output_schema: Record<string, unknown> | null; state_schema: Record<string, unknown> | null; config_schema: Record<string, unknown> | null; context_schema: Record<string, unknown> | null };

export type SelectedAssistant = { assistant_id?: string; graph_id?: string; name?: string; description?: string | null; config?: Record<string, unknown>; context?: Record<string, unknown>; metadata?: Record<string, unknown>; version?: number; created_at?: string; updated_at?: string };

export type SelectedCron = { cron_id?: string; assistant_id?: string; thread_id?: string | null; user_id?: string; end_time?: string | null; schedule?: string; timezone?: string | null; payload?: Record<string, unknown>; next_run_date?: string | null; metadata?: Record<string, unknown>; on_run_completed?: "delete" | "keep" | null; is_enabled?: boolean; enabled?: boolean; created_at?: string; updated_at?: string; skipped_count?: number };

export type ShownTtl = { strategy: "delete" | "keep_latest"; ttl_minutes: number; expires_at: string };

export type Slots = { max: number; active: number; available: number };

export type Space = { count: number; bytes: number };

export type StateAtCheckpoint = { checkpoint: Checkpoint; subgraphs?: boolean | null; select?: (string)[] | null };

export type StateInterrupt = { id: string; value: unknown };

export type StatePatch = { metadata: Record<string, unknown>; checkpoint?: Checkpoint | null; checkpoint_id?: string | null };

export type StateTask = { id: string; name: string; path: (unknown)[]; error: string | null; interrupts: (StateInterrupt)[]; checkpoint: Checkpoint | null; state: ThreadState | null; result: unknown };

export type StateUpdate = { values?: Record<string, unknown> | (unknown)[] | null; as_node?: string | null; checkpoint?: Checkpoint | null; checkpoint_id?: string | null };

export type StoredItem = { namespace: (string)[]; key: string; value: unknown; created_at: string; updated_at: string; ttl?: number; expires_at?: string };

export type Superstep = { updates: (NodeUpdate)[] };

export type TextBody = { detail: string; errors: (Problem)[] };

export type Thread = { thread_id?: string; created_at?: string; updated_at?: string; state_updated_at?: string; metadata?: Record<string, unknown>; config?: Record<string, unknown>; context?: Record<string, unknown>; status?: "busy" | "error" | "idle" | "interrupted"; values?: unknown | null; interrupts?: Record<string, unknown>; error?: Record<string, unknown> | null; extracted?: Record<string, unknown>; ttl?: ShownTtl };

export type ThreadCount = { metadata?: Record<string, unknown> | null; values?: Record<string, unknown> | null; status?: "busy" | "error" | "idle" | "interrupted" | null };

export type ThreadCreate = { thread_id?: string | null; metadata?: Record<string, unknown> | null; if_exists?: "do_nothing" | "raise" | null; ttl?: number | Ttl | null; supersteps?: (Superstep)[] | null; history?: (ImportedState)[] | null; created_at?: string | null; updated_at?: string | null };

export type ThreadCronCreate = { input?: unknown; metadata?: Record<string, unknown> | null; config?: RunConfig | null; context?: Record<string, unknown> | null; interrupt_before?: "*" | (string)[] | null; interrupt_after?: "*" | (string)[] | null; stream_mode?: "values" | "messages" | "messages-tuple" | "updates" | "events" | "tasks" | "checkpoints" | "debug" | "custom" | ("values" | "messages" | "messages-tuple" | "updates" | "events" | "tasks" | "checkpoints" | "debug" | "custom")[] | null; stream_subgraphs?: boolean | null; stream_resumable?: boolean | null; durability?: "async" | "exit" | "sync" | null; checkpoint_during?: boolean | null; webhook?: string | null; is_enabled?: boolean | null; timezone?: string | null; assistant_id: string; schedule: string; cron_id?: string | null; end_time?: string | null; multitask_strategy?: "enqueue" | "interrupt" | "reject" | "rollback" | null };

export type ThreadPatch = { metadata?: Record<string, unknown> | null; ttl?: number | Ttl | null };

export type ThreadPrune = { thread_ids: (string)[]; strategy?: "delete" | "keep_latest" | null };

export type ThreadSearch = { metadata?: Record<string, unknown> | null; values?: Record<string, unknown> | null; status?: "busy" | "error" | "idle" | "interrupted" | null; ids?: (string)[] | null; limit?: number | null; offset?: number | null; sort_by?: "created_at" | "state_updated_at" | "status" | "thread_id" | "updated_at" | null; sort_order?: "asc" | "desc" | null; select?: ("config" | "context" | "created_at" | "error" | "interrupts" | "metadata" | "state_updated_at" | "status" | "thread_id" | "updated_at" | "values")[] | null; extract?: Record<string, string> | null };

export type ThreadState = { values?: unknown; next?: (string)[]; tasks?: (StateTask)[]; metadata?: Record<string, unknown> | null; created_at?: string | null; checkpoint?: Checkpoint | null; parent_checkpoint?: Checkpoint | null; interrupts?: (StateInterrupt)[]; checkpoint_id?: string | null; parent_checkpoint_id?: string | null };

export type ThreadStorage = { thread_id: string; total_bytes: number; checkpoints: Space; channel_values: ChannelValuesSpace; pending_writes: Space };

export type Ttl = { ttl: number; strategy?: "delete" | "keep_latest" | null };

export type VersionSearch = { metadata?: Record<string, unknown> | null; limit?: number | null; offset?: number | null };

export type WebhookDelivery = { run_id: string; url: string; status: string; attempts: (DeliveryAttempt)[]; next_attempt_at: string | null };

export interface Operations {
  "GET /": { path: Record<never, never>; query: { check_db?: boolean; serving?: boolean }; body: undefined; response: Health };
  "GET /.well-known/agent-card.json": { path: Record<never, never>; query: { "A2A-Version"?: string; assistant_id?: string }; body: undefined; response: unknown };
  "GET /a2a/{assistant_id}": { path: { assistant_id: string }; query: { "A2A-Version"?: string }; body: undefined; response: unknown };
  "POST /a2a/{assistant_id}": { path: { assistant_id: string }; query: Record<never, never>; body: Record<string, unknown>; response: unknown };
  "GET /a2a/{assistant_id}/": { path: { assistant_id: string }; query: { "A2A-Version"?: string }; body: undefined; response: unknown };
  "POST /a2a/{assistant_id}/": { path: { assistant_id: string }; query: Record<never, never>; body: Record<string, unknown>; response: unknown };
  "GET /a2a/{assistant_id}/.well-known/agent-card.json": { path: { assistant_id: string }; query: { "A2A-Version"?: string }; body: undefined; response: unknown };
  "POST /assistants": { path: Record<never, never>; query: Record<never, never>; body: AssistantCreate; response: Assistant };
  "POST /assistants/count": { path: Record<never, never>; query: Record<never, never>; body: AssistantFilter; response: number };
  "POST /assistants/search": { path: Record<never, never>; query: Record<never, never>; body: AssistantSearch; response: (SelectedAssistant)[] };
  "DELETE /assistants/{assistant_id}": { path: { assistant_id: string }; query: { delete_threads?: boolean }; body: undefined; response: undefined };
  "GET /assistants/{assistant_id}": { path: { assistant_id: string }; query: Record<never, never>; body: undefined; response: Assistant };
  "PATCH /assistants/{assistant_id}": { path: { assistant_id: string }; query: Record<never, never>; body: AssistantPatch; response: Assistant };
  "GET /assistants/{assistant_id}/graph": { path: { assistant_id: string }; query: { xray?: string }; body: undefined; response: Drawing };
  "POST /assistants/{assistant_id}/latest": { path: { assistant_id: string }; query: { version?: number }; body: LatestVersion | null; response: Assistant };
  "GET /assistants/{assistant_id}/schemas": { path: { assistant_id: string }; query: Record<never, never>; body: undefined; response: GraphSchemas };
  "GET /assistants/{assistant_id}/subgraphs": { path: { assistant_id: string }; query: { recurse?: boolean }; body: undefined; response: Record<string, Schemas> };
  "GET /assistants/{assistant_id}/subgraphs/{namespace}": { path: { assistant_id: string; namespace: string }; query: { recurse?: boolean }; body: undefined; response: Record<string, Schemas> };
  "POST /assistants/{assistant_id}/versions": { path: { assistant_id: string }; query: Record<never, never>; body: VersionSearch; response: (AssistantVersion)[] };
  "GET /docs": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "POST /heapdump": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: HeapDump };
  "GET /info": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: Info };
  "DELETE /mcp": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "GET /mcp": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "POST /mcp": { path: Record<never, never>; query: Record<never, never>; body: Record<string, unknown>; response: unknown };
  "DELETE /mcp/": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "GET /mcp/": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "POST /mcp/": { path: Record<never, never>; query: Record<never, never>; body: Record<string, unknown>; response: unknown };
  "GET /metrics": { path: Record<never, never>; query: { format?: string }; body: undefined; response: Metrics };
  "GET /ok": { path: Record<never, never>; query: { check_db?: boolean; serving?: boolean }; body: undefined; response: Health };
  "GET /openapi.json": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: unknown };
  "GET /profile": { path: Record<never, never>; query: { seconds?: number }; body: undefined; response: undefined };
  "POST /runs": { path: Record<never, never>; query: Record<never, never>; body: RunCreate; response: Run };
  "POST /runs/batch": { path: Record<never, never>; query: Record<never, never>; body: (RunCreate)[]; response: (Run)[] };
  "POST /runs/cancel": { path: Record<never, never>; query: { action?: "interrupt" | "rollback" }; body: CancelMany; response: undefined };
  "POST /runs/crons": { path: Record<never, never>; query: Record<never, never>; body: CronCreate; response: Cron };
  "POST /runs/crons/count": { path: Record<never, never>; query: Record<never, never>; body: CronFilter; response: number };
  "POST /runs/crons/preview": { path: Record<never, never>; query: Record<never, never>; body: CronPreview; response: CronTimes };
  "POST /runs/crons/search": { path: Record<never, never>; query: Record<never, never>; body: CronSearch; response: (SelectedCron)[] };
  "DELETE /runs/crons/{cron_id}": { path: { cron_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /runs/crons/{cron_id}": { path: { cron_id: string }; query: Record<never, never>; body: undefined; response: Cron };
  "PATCH /runs/crons/{cron_id}": { path: { cron_id: string }; query: Record<never, never>; body: CronPatch; response: Cron };
  "POST /runs/crons/{cron_id}/run": { path: { cron_id: string }; query: Record<never, never>; body: undefined; response: Cron };
  "POST /runs/search": { path: Record<never, never>; query: Record<never, never>; body: RunSearch; response: (FoundRun)[] };
  "POST /runs/stream": { path: Record<never, never>; query: Record<never, never>; body: RunCreate; response: undefined };
  "POST /runs/wait": { path: Record<never, never>; query: Record<never, never>; body: RunCreate; response: unknown };
  "GET /runs/{run_id}/join": { path: { run_id: string }; query: { cancel_on_disconnect?: boolean }; body: undefined; response: unknown };
  "GET /runs/{run_id}/stream": { path: { run_id: string }; query: { stream_mode?: ("values" | "messages" | "messages-tuple" | "updates" | "events" | "tasks" | "checkpoints" | "debug" | "custom")[]; cancel_on_disconnect?: boolean }; body: undefined; response: undefined };
  "DELETE /store/items": { path: Record<never, never>; query: Record<never, never>; body: ItemDelete; response: undefined };
  "GET /store/items": { path: Record<never, never>; query: { namespace: string; key?: string; refresh_ttl?: boolean }; body: undefined; response: StoredItem | null };
  "PUT /store/items": { path: Record<never, never>; query: Record<never, never>; body: ItemPut; response: undefined };
  "POST /store/items/search": { path: Record<never, never>; query: Record<never, never>; body: ItemSearch; response: FoundItems };
  "POST /store/namespaces": { path: Record<never, never>; query: Record<never, never>; body: NamespaceSearch; response: Namespaces };
  "POST /threads": { path: Record<never, never>; query: Record<never, never>; body: ThreadCreate; response: Thread };
  "POST /threads/count": { path: Record<never, never>; query: Record<never, never>; body: ThreadCount; response: number };
  "POST /threads/prune": { path: Record<never, never>; query: Record<never, never>; body: ThreadPrune; response: Pruned };
  "POST /threads/search": { path: Record<never, never>; query: Record<never, never>; body: ThreadSearch; response: (Thread)[] };
  "DELETE /threads/{thread_id}": { path: { thread_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /threads/{thread_id}": { path: { thread_id: string }; query: { include?: (string)[] }; body: undefined; response: Thread };
  "PATCH /threads/{thread_id}": { path: { thread_id: string }; query: Record<never, never>; body: ThreadPatch; response: Thread };
  "POST /threads/{thread_id}/commands": { path: { thread_id: string }; query: Record<never, never>; body: { id: number; method: string }; response: unknown };
  "POST /threads/{thread_id}/copy": { path: { thread_id: string }; query: Record<never, never>; body: undefined; response: Thread };
  "GET /threads/{thread_id}/history": { path: { thread_id: string }; query: { limit?: number; before?: string; select?: (string)[] }; body: undefined; response: (ThreadState)[] };
  "POST /threads/{thread_id}/history": { path: { thread_id: string }; query: Record<never, never>; body: HistorySearch; response: (ThreadState)[] };
  "GET /threads/{thread_id}/runs": { path: { thread_id: string }; query: { limit?: number; offset?: number; status?: string; select?: ("assistant_id" | "cancel_reason" | "created_at" | "error" | "kwargs" | "langsmith_session_name" | "metadata" | "multitask_strategy" | "run_id" | "status" | "thread_id" | "updated_at")[] }; body: undefined; response: (ListedRun)[] };
  "POST /threads/{thread_id}/runs": { path: { thread_id: string }; query: Record<never, never>; body: RunCreate; response: Run };
  "POST /threads/{thread_id}/runs/crons": { path: { thread_id: string }; query: Record<never, never>; body: ThreadCronCreate; response: Cron };
  "POST /threads/{thread_id}/runs/stream": { path: { thread_id: string }; query: Record<never, never>; body: RunCreate; response: undefined };
  "POST /threads/{thread_id}/runs/wait": { path: { thread_id: string }; query: Record<never, never>; body: RunCreate; response: unknown };
  "DELETE /threads/{thread_id}/runs/{run_id}": { path: { thread_id: string; run_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /threads/{thread_id}/runs/{run_id}": { path: { thread_id: string; run_id: string }; query: Record<never, never>; body: undefined; response: Run };
  "POST /threads/{thread_id}/runs/{run_id}/cancel": { path: { thread_id: string; run_id: string }; query: { action?: "interrupt" | "rollback"; wait?: boolean }; body: undefined; response: Record<string, string> };
  "GET /threads/{thread_id}/runs/{run_id}/join": { path: { thread_id: string; run_id: string }; query: { cancel_on_disconnect?: boolean }; body: undefined; response: unknown };
  "GET /threads/{thread_id}/runs/{run_id}/stream": { path: { thread_id: string; run_id: string }; query: { stream_mode?: ("values" | "messages" | "messages-tuple" | "updates" | "events" | "tasks" | "checkpoints" | "debug" | "custom")[]; cancel_on_disconnect?: boolean }; body: undefined; response: undefined };
  "GET /threads/{thread_id}/runs/{run_id}/webhook": { path: { thread_id: string; run_id: string }; query: Record<never, never>; body: undefined; response: WebhookDelivery };
  "GET /threads/{thread_id}/state": { path: { thread_id: string }; query: { subgraphs?: boolean; select?: (string)[] }; body: undefined; response: ThreadState };
  "PATCH /threads/{thread_id}/state": { path: { thread_id: string }; query: Record<never, never>; body: StatePatch; response: NamedCheckpoint };
  "POST /threads/{thread_id}/state": { path: { thread_id: string }; query: Record<never, never>; body: StateUpdate; response: NamedCheckpoint };
  "POST /threads/{thread_id}/state/checkpoint": { path: { thread_id: string }; query: Record<never, never>; body: StateAtCheckpoint; response: ThreadState };
  "GET /threads/{thread_id}/state/{checkpoint_id}": { path: { thread_id: string; checkpoint_id: string }; query: { subgraphs?: boolean; select?: (string)[] }; body: undefined; response: ThreadState };
  "GET /threads/{thread_id}/storage": { path: { thread_id: string }; query: Record<never, never>; body: undefined; response: ThreadStorage };
  "GET /threads/{thread_id}/stream": { path: { thread_id: string }; query: { stream_modes?: ("run_modes" | "lifecycle" | "state_update")[]; stream_mode?: ("run_modes" | "lifecycle" | "state_update")[] }; body: undefined; response: undefined };
  "POST /threads/{thread_id}/stream/events": { path: { thread_id: string }; query: Record<never, never>; body: { channels: (string)[] }; response: undefined };
  "POST /ui/{name}": { path: { name: string }; query: Record<never, never>; body: ComponentRequest; response: string };
  "GET /ui/{name}/{file}": { path: { name: string; file: string }; query: Record<never, never>; body: undefined; response: string };
}
