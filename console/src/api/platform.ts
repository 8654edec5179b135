// Written by `make generate` from the OpenAPI document; edit the routes.

export type Accepted = { message?: string };

export type ActivityPage = { items: (ApiActivity)[]; cursor: string | null };

export type AgentAccess = { allow?: "none" | "permission" | "roles" | "workspace"; roles?: (string)[] };

export type Alert = { id: string; rule: string; subject: string; name: string; detail: string; value: number; threshold: number; began_at: string; fired_at: string; ended_at: string | null; notified_at: string | null; is_silenced: boolean };

export type ApiActivity = { class_uid?: 6003; class_name?: "API Activity"; category_uid?: 6; category_name?: "Application Activity"; severity_id?: 99; type_uid: number; activity_id: number; activity_name: string; status_id: number; status: "Failure" | "Success"; time: number; metadata: Record<string, unknown>; api: Record<string, string>; http_request: Record<string, unknown>; http_response: Record<string, number | null>; actor: Record<string, Record<string, string | null>>; src_endpoint: Record<string, unknown>; resources: (Record<string, string>)[]; unmapped: Record<string, Record<string, unknown>> };

export type AttachmentsOperations = { rename?: Record<string, string>; retain?: (string)[] };

export type Attempt = { started_at: string; ended_at: string; location: string; name: string; is_scheduled: boolean; size_bytes?: number | null; error?: string | null };

export type AuditChain = { entries: number; first_seq: number | null; last_seq: number | null; last_hash: string | null; broken_at: number | null };

export type AuditEntry = { seq: number; id: string; at: string; organization_id: string | null; workspace_id: string | null; actor_kind: "anonymous" | "platform" | "service_key" | "user"; user_id: string | null; user_email: string | null; key_id: string | null; short_key: string | null; session_id: string | null; address: string | null; client: string | null; action: string; object_ids: (string)[]; object_name: string | null; fields: (string)[]; outcome: "failed" | "ok" | "refused"; status: number | null; error: string | null; request_id: string | null; count: number; hash: string };

export type AuditPage = { items: (AuditEntry)[]; cursor: number | null };

export type BackupSchedule = { location: string; every_hours: number; keep: number; keep_days: number; keeps_log: boolean; is_running: boolean; next_at: string | null; restore_command: string };

export type Backups = { schedule: BackupSchedule | null; backups: (ListedBackup)[]; attempts: (Attempt)[]; problem?: string | null; restorable?: (TimeSpan)[] };

export type BatchIngestConfig = { use_multipart_endpoint?: boolean; scale_up_qsize_trigger?: number; scale_up_nthreads_limit?: number; scale_down_nempty_trigger?: number; size_limit?: number; size_limit_bytes?: number };

export type BilledMetric = { customer_id: string; billable_metric_id: string; billable_metric_name: string; start_timestamp: string; end_timestamp: string; value: number; groups: Record<string, number> };

export type Category = { value: number; label?: string | null };

export type Changed = { count: number; example_ids: (string)[]; as_of: string };

export type Channel = { id: string; kind: "mail" | "webhook"; name: string; target: string; created_at: string; last_delivered_at: string | null; last_error: string | null };

export type ChannelRequest = { kind: "mail" | "webhook"; name: string; url?: string | null; to?: (string)[] | null };

export type Chart = { id: string; section_id: string; title: string; description: string | null; index: number; chart_type: string; series: (ChartSeries)[]; common_filters: ChartFilters | null; metadata: Record<string, unknown> | null; data?: (Point)[] };

export type ChartDraft = { series: (ChartSeries)[]; common_filters?: ChartFilters | null };

export type ChartFilters = { session?: (string)[] | null; filter?: string | null; trace_filter?: string | null; tree_filter?: string | null };

export type ChartPatch = { title?: string | null; series?: (ChartSeries)[] | null; description?: string | null; index?: number | null; chart_type?: "bar" | "line" | null; section_id?: string | null; common_filters?: ChartFilters | null; metadata?: Record<string, unknown> | null };

export type ChartRequest = { title: string; series: (ChartSeries)[]; description?: string | null; index?: number | null; chart_type?: "bar" | "line"; section_id?: string | null; common_filters?: ChartFilters | null; metadata?: Record<string, unknown> | null };

export type ChartSeries = { metric: "completion_cost" | "completion_tokens" | "completion_tokens_p50" | "completion_tokens_p99" | "cost_p50" | "cost_p99" | "error_rate" | "feedback" | "feedback_score_avg" | "feedback_values" | "first_token_p50" | "first_token_p99" | "latency_avg" | "latency_p50" | "latency_p95" | "latency_p99" | "median_tokens" | "prompt_cost" | "prompt_tokens" | "prompt_tokens_p50" | "prompt_tokens_p99" | "run_count" | "streaming_rate" | "tokens_p99" | "total_cost" | "total_tokens"; name?: string | null; id?: string; filters?: ChartFilters | null; feedback_key?: string | null; group_by?: Grouping | null };

export type ChartStride = { days?: number; hours?: number; minutes?: number };

export type ChartWindow = { start_time: string; end_time?: string | null; stride?: ChartStride; timezone?: string; omit_data?: boolean };

export type Commit = { id: string; repo_id: string; parent_id: string | null; commit_hash: string; parent_commit_hash: string | null; description: string | null; num_downloads: number; created_at: string; updated_at: string; num_views?: number; example_run_ids?: (string)[] };

export type CommitList = { commits: (Commit)[]; total: number };

export type CommitRequest = { manifest: Record<string, unknown>; parent_commit?: string | null; description?: string | null };

export type CommitResponse = { commit: Commit };

export type CommitTag = { id: string; repo_id: string; commit_id: string; commit_hash: string; tag_name: string; created_at: string; updated_at: string };

export type CommitTagRequest = { tag_name: string; commit_id: string };

export type Comparison = { id: string; tenant_id: string; reference_dataset_id: string; name: string | null; description: string | null; extra: Record<string, unknown> | null; created_at: string; modified_at: string; experiments_info: (Record<string, unknown>)[] };

export type ComparisonRequest = { experiment_ids: (string)[]; reference_dataset_id: string; id?: string | null; name?: string | null; description?: string | null; extra?: Record<string, unknown> | null; created_at?: string | null };

export type ComputeConfig = { k8s_namespaces?: (string)[] | null };

export type ConfigPatch = { feedback_key: string; feedback_config?: FeedbackScale | null; is_lower_score_better?: boolean | null };

export type ConfigRequest = { feedback_key: string; feedback_config: FeedbackScale; is_lower_score_better?: boolean | null; is_enforced?: false };

export type Connect = { compute_type: "k8s" | "process"; compute_id: string; version?: string | null; size_limits?: SizeLimits | null };

export type Connected = { listener_id: string };

export type Container = { name: string; image: string; imagePullPolicy?: "Always" | "IfNotPresent" | "Never" | null; command?: (string)[] | null; args?: (string)[] | null; workingDir?: string | null; env?: (EnvVar)[] | null; envFrom?: (Record<string, unknown>)[] | null; resources?: ResourceRequirements | null; volumeMounts?: (VolumeMount)[] | null; securityContext?: Record<string, unknown> | null; restartPolicy?: "Always" | "OnFailure" | null; ports?: (ContainerPort)[] | null; startupProbe?: Record<string, unknown> | null; readinessProbe?: Record<string, unknown> | null; livenessProbe?: Record<string, unknown> | null; lifecycle?: Record<string, unknown> | null };

export type ContainerPort = { containerPort: number; name?: string | null; protocol?: "SCTP" | "TCP" | "UDP" | null; hostPort?: number | null; hostIP?: string | null };

export type CostRecord = { time_bucket: string; dimensions: Record<string, unknown>; traces?: number | null; runs?: number; failed_runs?: number; prompt_tokens?: number; completion_tokens?: number; prompt_cost?: string | null; completion_cost?: string | null; total_cost?: string | null; unpriced_runs?: number };

export type Costs = { stride: Stride; usage: (CostRecord)[] };

export type Credentials = { email: string; password: string };

export type Cursors = { next?: string | null; prev?: string | null };

export type DatabaseSize = { name: string; bytes: number; problem?: string | null };

export type Dataset = { id: string; tenant_id: string; name: string; description: string | null; data_type: string; created_at: string; modified_at: string; example_count: number; session_count: number; last_session_start_time: string | null; inputs_schema_definition: Record<string, unknown> | null; outputs_schema_definition: Record<string, unknown> | null; metadata: Record<string, unknown> | null; transformations?: null };

export type DatasetPatch = { name?: string | null; description?: string | null; metadata?: Record<string, unknown> | null; inputs_schema_definition?: Record<string, unknown> | null; outputs_schema_definition?: Record<string, unknown> | null; transformations?: (unknown)[] | null };

export type DatasetRequest = { name: string; id?: string | null; description?: string | null; data_type?: "chat" | "kv" | "llm"; extra?: Record<string, unknown> | null; metadata?: Record<string, unknown> | null; inputs_schema_definition?: Record<string, unknown> | null; outputs_schema_definition?: Record<string, unknown> | null; transformations?: (unknown)[] | null; tag_value_ids?: (unknown)[] | null };

export type DatasetShare = { dataset_id: string; share_token: string };

export type DeletedDeployments = { deployment_ids: (string)[] };

export type Deployment = { id: string; tenant_id: string; name: string; display_name: string | null; source: "external_docker" | "external_image" | "git_hosting" | "github" | "internal_docker" | "internal_source" | "internal_template"; source_config: SourceConfig; source_revision_config: SourceRevisionConfig; secrets: (Secret)[]; ignored_secrets: (string)[]; secret_references?: (SecretReference)[] | null; agent_access: AgentAccess; sleep_after_s: number; is_asleep: boolean; pin_threads: number; status: DeploymentStatus; status_message: string | null; latest_revision_id: string | null; active_revision_id: string | null; image_version?: string | null; server_version?: string | null; tracing_project_id: string; created_at: string; updated_at: string };

export type DeploymentCreate = { name: string; source: "external_docker" | "external_image" | "git_hosting" | "github" | "internal_docker" | "internal_source" | "internal_template"; source_config: SourceConfig; source_revision_config: SourceRevisionRequest; secrets?: (Secret)[] | null; secret_references?: (SecretReference)[] | null; agent_access?: AgentAccess | null; sleep_after_s?: number | null; pin_threads?: number | null; agent?: null };

export type DeploymentList = { resources: (Deployment)[]; offset: number };

export type DeploymentMetrics = { replicas?: number | null; queue_replicas?: number | null; cpu?: number | null; memory_mb?: number | null; restarts?: number | null; pending_runs?: number | null; active_runs?: number | null; oldest_wait_s?: number | null; problem?: string | null; server_version?: string | null; is_behind?: boolean; roll_forward?: number | null; roll_failure?: string | null; is_asleep?: boolean; threads_by_revision?: Record<string, number> | null; measured_at?: string | null };

export type DeploymentPatch = { name?: string | null; source?: "external_docker" | "external_image" | "git_hosting" | "github" | "internal_docker" | "internal_source" | "internal_template" | null; revision_source?: "external_docker" | "external_image" | "git_hosting" | "github" | "internal_docker" | "internal_source" | "internal_template" | null; display_name?: string | null; source_config?: SourceConfig | null; source_revision_config?: SourceRevisionRequest | null; secrets?: (Secret)[] | null; secret_changes?: SecretChanges | null; secret_references?: (SecretReference)[] | null; agent_access?: AgentAccess | null; sleep_after_s?: number | null; pin_threads?: number | null };

export type DeploymentReport = { status: "READY" | "UNKNOWN" | "UNUSED"; custom_url?: string | null; reason?: string | null };

export type DeploymentServer = { id: string; name: string; version: string | null; state: "behind" | "current" | "failed" | "own" | "replacing" | "stopped" | "unknown" };

export type DeploymentStatus = "AWAITING_DATABASE" | "AWAITING_DELETE" | "READY" | "UNKNOWN" | "UNUSED";

export type Desired = { generation: number; deployments: (DesiredDeployment)[] };

export type DesiredDeployment = { id: string; name: string; tenant_id: string; status: DeploymentStatus; active_revision_id: string | null; custom_url: string | null; deployment_type?: string | null; k8s_namespace?: string | null; scale?: Scale; sleep_after_s?: number; pin_threads?: number; environment: Record<string, string>; revisions: (DesiredRevision)[]; roll_forward?: number | null };

export type DesiredRevision = { id: string; number: number; status: RevisionStatus; source: string; repo_url: string | null; repo_ref: string | null; repo_commit_sha: string | null; repo_credential?: Secret | null; graph_config_path: string | null; source_tarball_path?: string | null; image_uri?: string | null; install_command: string | null; build_command: string | null; secrets: (Secret)[]; secret_references?: (Record<string, string>)[]; resource_spec: Record<string, unknown>; built_from?: string | null; created_at: string };

export type DeviceAuthorization = { device_code: string; user_code: string; verification_uri: string; verification_uri_complete: string; expires_in: number; interval: number };

export type Diagnosis = { findings: (Finding)[]; faults: number; warnings: number };

export type Difference = { examples_modified?: (string)[]; examples_added?: (string)[]; examples_removed?: (string)[] };

export type Directory = { commit_id: string; commit_hash: string; files: Record<string, Entry> };

export type DirectoryCommitRequest = { files: Record<string, Entry | null>; parent_commit?: string | null };

export type Disk = { folder: string; total_bytes: number; free_bytes: number };

export type DiskReport = { folder: string; total_bytes: number; free_bytes: number; reserve_bytes: number; shortage: string | null; home_bytes: number; databases_bytes: number; databases: (DatabaseSize)[]; taken: (SpaceTaken)[] };

export type Entry = { type: "agent" | "file" | "skill"; content?: string | null; repo_handle?: string | null; owner?: string | null; commit_id?: string | null; commit_hash?: string | null; selector?: unknown };

export type EnvVar = { name: string; value?: string; valueFrom?: Record<string, unknown> | null };

export type ErrorBody = { detail: string; error?: string | null };

export type Example = { id: string; dataset_id?: string; name?: string; inputs?: unknown; outputs?: unknown | null; metadata?: Record<string, unknown>; created_at?: string; modified_at?: string; source_run_id?: string | null; attachment_urls?: Record<string, ExampleAttachment>; inputs_preview?: string; outputs_preview?: string | null };

export type ExampleAttachment = { presigned_url: string; mime_type: string };

export type ExampleDeletion = { example_ids: (string)[]; hard_delete?: boolean };

export type ExamplePatch = { dataset_id?: string | null; inputs?: Record<string, unknown> | null; outputs?: Record<string, unknown> | null; metadata?: Record<string, unknown> | null; split?: string | (string)[] | null; attachments_operations?: AttachmentsOperations | null };

export type ExampleRequest = { created_at?: string | null; metadata?: Record<string, unknown> | null; split?: string | (string)[] | null; source_run_id?: string | null; use_source_run_io?: boolean; use_source_run_attachments?: (string)[] | null; dataset_id: string; id?: string | null; inputs?: Record<string, unknown> | null; outputs?: Record<string, unknown> | null };

export type ExampleRuns = { id: string; dataset_id: string; name: string; inputs: unknown; outputs: unknown | null; metadata: Record<string, unknown>; created_at: string; modified_at: string; source_run_id: string | null; attachment_urls: Record<string, string>; runs: (Record<string, unknown>)[] };

export type ExampleWithRuns = { id: string; dataset_id?: string; name?: string; inputs?: unknown; outputs?: unknown | null; metadata?: Record<string, unknown>; created_at?: string; modified_at?: string; source_run_id?: string | null; attachment_urls?: Record<string, ExampleAttachment>; inputs_preview?: string; outputs_preview?: string | null; runs: (TracedRun)[] };

export type ExamplesChanged = { message: string; count: number; example_ids: (string)[] };

export type ExperimentPage = { session_ids: (string)[]; offset?: number; limit?: number; preview?: boolean; comparative_experiment_id?: string | null; filters?: Record<string, (string)[]> | null };

export type ExperimentRuns = { items: (ExampleRuns)[]; next_cursor: string | null };

export type ExperimentRunsQuery = { experiment_ids: (string)[]; example_ids?: (string)[] | null; filters?: Record<string, (string)[]> | null; page_size?: number; cursor?: string | null; selects?: (string)[] | null; include_subtree_usage?: boolean; comparative_experiment_id?: string | null; sort?: Record<string, unknown> | null };

export type Feedback = { id: string; key: string; run_id: string | null; trace_id: string | null; session_id: string | null; created_at: string; modified_at: string; score?: unknown; value?: unknown; comment?: unknown; correction?: unknown; feedback_source?: unknown; extra?: unknown };

export type FeedbackConfig = { feedback_key: string; feedback_config: FeedbackScale; tenant_id: string; modified_at: string; is_lower_score_better: boolean; is_enforced?: false };

export type FeedbackPatch = { score?: boolean | number | null; value?: boolean | number | string | Record<string, unknown> | null; comment?: string | null; correction?: string | Record<string, unknown> | null; feedback_config?: Record<string, unknown> | null };

export type FeedbackRequest = { key: string; id?: string | null; run_id?: string | null; trace_id?: string | null; session_id?: string | null; start_time?: string | number | null; created_at?: string | null; modified_at?: string | null; score?: boolean | number | null; value?: boolean | number | string | Record<string, unknown> | null; comment?: string | null; correction?: string | Record<string, unknown> | null; feedback_source?: FeedbackSource | null; feedback_config?: Record<string, unknown> | null; extra?: Record<string, unknown> | null; error?: boolean | null; extend_trace_retention?: boolean };

export type FeedbackScale = { type: "categorical" | "continuous" | "freeform"; min?: number | null; max?: number | null; categories?: (Category)[] | null };

export type FeedbackSource = { type?: "api" | "app" | "auto_eval" | "model"; metadata?: Record<string, unknown> | null; user_id?: string | null; user_name?: string | null };

export type FeedbackStats = { n: number; avg: number | null; values?: Record<string, number> };

export type Finding = { check: string; level: "fault" | "ok" | "warning"; message: string; do?: string };

export type FoundRuns = { runs: (Record<string, unknown>)[]; cursors: Cursors; parsed_query?: string | null };

export type GitRepository = { host_integration_id: string; id: number; name: string; owner: string; url: string; default_branch: string | null };

export type GroupBy = "api_key" | "project" | "user" | "workspace";

export type Grouping = { attribute: "metadata" | "model" | "name" | "node" | "project" | "run_type" | "tag" | "thread" | "user"; path?: string | null; max_groups?: number };

export type Identity = { organization_id: string; tenant_id: string | null; workspace_name: string | null; tenant_handle: string | null; user_id: string | null; user_email: string | null; key_id: string; short_key: string; permissions: (string)[]; roles: (string)[] };

export type InstanceFlags = { zstd_compression_enabled?: boolean; dataset_examples_multipart_enabled?: boolean; examples_multipart_enabled?: boolean };

export type Integration = { id: string; installation_id: number; name: string; kind: string; base_url: string | null; has_token: boolean; has_webhook: boolean };

export type IntegrationCreate = { name: string; kind: "gitea" | "github" | "gitlab"; base_url?: string | null; token?: string | null };

export type IntegrationPatch = { token: string };

export type Json = unknown;

export type Key = { id: string; short_key: string; description: string; permissions: (string)[]; read_only: boolean; created_at: string; last_used_at: string | null; expires_at: string | null; workspace_names: (string)[]; default_workspace_id: string | null; default_workspace_name: string | null; used_by: string | null; created_by: string | null };

export type KeyRequest = { description?: string; permissions?: (string)[] | null; expires_at?: string | null; read_only?: boolean; role_id?: string | null; org_role_id?: string | null; workspaces?: (string)[] | null; default_workspace_id?: string | null };

export type Lifetime = { days?: number; hours?: number; minutes?: number };

export type LikeRequest = { like: boolean };

export type Likes = { likes: number };

export type Limits = { monthly: (MonthlyLimit)[]; rates: (RateBudget)[] };

export type ListedBackup = { name: string; size_bytes: number; created_at: string; kind?: string; version?: string; installation?: string; problem?: string | null };

export type Listener = { id: string; compute_type: "k8s" | "process"; compute_id: string; compute_config: ComputeConfig; version: string | null; last_seen_at: string | null; created_at: string; updated_at: string };

export type ListenerConfig = { k8s_namespace?: string | null };

export type ListenerCreate = { compute_type: "k8s"; compute_id: string; compute_config: ComputeConfig; version?: string | null };

export type ListenerList = { resources: (Listener)[]; offset: number };

export type ListenerPatch = { version?: string | null; compute_config?: ComputeConfig | null };

export type LocalObjectReference = { name: string };

export type LogBatch = { type: "build" | "deploy"; entries: (NewLogEntry)[] };

export type LogEntry = { id: string; timestamp: number; level: string; message: string };

export type LogFilter = { order?: "asc" | "desc"; limit?: number; offset?: string | null; level?: string | null; query?: string | null; start_time?: string | null; end_time?: string | null; run_id?: string | null };

export type LogPage = { logs: (LogEntry)[]; next_offset: string | null };

export type LoggedIn = { access_token: string; expires_at: string; token_type?: string };

export type LoginSession = { id: string; user_id: string | null; user_email: string; short_key: string; kind: string; method: string; address: string | null; client: string | null; created_at: string; last_used_at: string; expires_at: string; is_current: boolean };

export type Manifest = { commit_hash: string; manifest: unknown; description: string | null; examples?: (unknown)[] };

export type Member = { id: string; user_id: string; email: string; full_name: string | null; role_id: string; role_name: string; created_at: string };

export type MemberRequest = { email: string; full_name?: string | null; password?: string | null; role_id?: string; workspaces?: (string)[]; workspace_role?: string };

export type MetricsReport = { replicas?: number | null; queue_replicas?: number | null; cpu?: number | null; memory_mb?: number | null; restarts?: number | null; pending_runs?: number | null; active_runs?: number | null; oldest_wait_s?: number | null; problem?: string | null; server_version?: string | null; is_behind?: boolean; roll_forward?: number | null; roll_failure?: string | null; is_asleep?: boolean; threads_by_revision?: Record<string, number> | null };

export type ModelInUse = { provider: string; name: string; first_seen_at: string | null; runs: number; prompt_tokens: number; completion_tokens: number; total_cost: string | null; unpriced_runs: number; price_id: string | null; price_name: string | null };

export type ModelPrice = { id: string; tenant_id: string | null; source: "file" | "shipped" | "workspace"; name: string; provider: string | null; match_pattern: string; start_time: string | null; prompt_token_threshold: number | null; prompt_cost: string; completion_cost: string; prompt_cost_details: Record<string, string> | null; completion_cost_details: Record<string, string> | null; match_path?: (string)[] };

export type MonthlyLimit = { limit_type: string; limit_value: number | null; used: number; remaining: number | null; resets_at: string };

export type Move = { status: RevisionStatus; reason: string | null; at: string };

export type NamedPatch = { dataset_id?: string | null; inputs?: Record<string, unknown> | null; outputs?: Record<string, unknown> | null; metadata?: Record<string, unknown> | null; split?: string | (string)[] | null; attachments_operations?: AttachmentsOperations | null; id: string };

export type NewChannel = { id: string; kind: "mail" | "webhook"; name: string; target: string; created_at: string; last_delivered_at: string | null; last_error: string | null; secret?: string | null };

export type NewKey = { id: string; short_key: string; description: string; permissions: (string)[]; read_only: boolean; created_at: string; last_used_at: string | null; expires_at: string | null; workspace_names: (string)[]; default_workspace_id: string | null; default_workspace_name: string | null; used_by: string | null; created_by: string | null; key: string };

export type NewLogEntry = { timestamp: number; level: string; message: string };

export type NewPassword = { new: string; current?: string | null };

export type Organization = { id: string; display_name: string; created_at: string };

export type PlatformInfo = { region?: Region; version?: string; portside_version?: string; batch_ingest_config?: BatchIngestConfig; instance_flags?: InstanceFlags };

export type Point = { series_id: string; timestamp: string; value: number | Record<string, unknown> | null; group?: string | null };

export type Preview = { data: (Point)[] };

export type PreviewRequest = { bucket_info: ChartWindow; chart: ChartDraft };

export type PriceRequest = { name: string; match_pattern: string; prompt_cost: string; completion_cost: string; prompt_cost_details?: Record<string, string> | null; completion_cost_details?: Record<string, string> | null; provider?: string | null; start_time?: string | null; prompt_token_threshold?: number | null; match_path?: ("endpoint_name" | "model" | "model_id" | "model_name" | "model_path")[] | null };

export type Problem = { loc: (string | number)[]; msg: string; type: string };

export type ProblemsBody = { detail: (Problem)[] };

export type ProjectPatch = { name?: string | null; description?: string | null; extra?: Record<string, unknown> | null; start_time?: string | null; end_time?: string | null; default_dataset_id?: string | null; reference_dataset_id?: string | null; trace_tier?: "longlived" | "shortlived" | null };

export type ProjectRequest = { name: string; id?: string | null; description?: string | null; extra?: Record<string, unknown> | null; start_time?: string | null; default_dataset_id?: string | null; reference_dataset_id?: string | null; trace_tier?: "longlived" | "shortlived" | null };

export type Prompt = { id: string; tenant_id: string; owner: string; repo_handle: string; full_name: string; description: string; readme: string; tags: (string)[]; is_public: boolean; is_archived: boolean; num_likes: number; num_downloads: number; num_views: number; num_commits: number; liked_by_auth_user: boolean; last_commit_hash: string | null; created_at: string; updated_at: string; repo_type?: "agent" | "prompt" | "skill" };

export type PromptList = { repos: (Prompt)[]; total: number };

export type PromptPatch = { description?: string | null; readme?: string | null; tags?: (string)[] | null; is_public?: boolean | null; is_archived?: boolean | null };

export type PromptRequest = { repo_handle: string; description?: string | null; readme?: string | null; tags?: (string)[] | null; is_public?: boolean; repo_type?: "agent" | "prompt" | "skill" };

export type PromptResponse = { repo: Prompt };

export type PublicIdentity = { organization_id: string; tenant_id: string | null; user_id: string | null; user_email: string | null; ls_user_id: string | null };

export type PublicKey = { kid: string; x: string; kty?: string; crv?: string; alg?: string; use?: string };

export type PublicKeys = { keys: (PublicKey)[] };

export type PushResponse = { revision_ids?: (string)[]; ignored?: string | null };

export type PushTokenRequest = { supports_registry_username?: boolean };

export type PushWebhook = { url: string; secret: string; content_type?: string; events?: (string)[] };

export type Queue = { id: string; tenant_id: string; name: string; description: string | null; rubric_instructions: string | null; rubric_items: (RubricItem)[]; created_at: string; updated_at: string };

export type QueuePatch = { name?: string | null; description?: string | null; rubric_instructions?: string | null; rubric_items?: (RubricItem)[] | null };

export type QueueRequest = { name: string; id?: string | null; description?: string | null; rubric_instructions?: string | null; rubric_items?: (RubricItem)[] };

export type QueueSize = { size: number; completed: number };

export type QueuedRun = { id: string; run_id: string; queue_id: string; added_at: string; last_reviewed_time: string | null };

export type RateBudget = { match: string; category: string; count: number; seconds: number; remaining: number; seconds_left: number | null };

export type Recomputation = { id: string; session_id: string | null; session_name: string | null; start_time: string; end_time: string; reached_time: string; progress: number; runs: number; changed: number; created_at: string; finished_at: string | null; cancelled_at: string | null; error: string | null; retry_at: string | null };

export type RecomputationRequest = { session_id?: string | null; start_time?: string | null; end_time?: string | null };

export type Region = "eu" | "us";

export type ResourceRequirements = { limits?: Record<string, string> | null; requests?: Record<string, string> | null };

export type ResourceSpec = { min_scale?: number | null; max_scale?: number | null; cpu?: number | null; cpu_limit?: number | null; memory_mb?: number | null; memory_limit_mb?: number | null; queue_min_scale?: number | null; queue_max_scale?: number | null; queue_cpu?: number | null; queue_cpu_limit?: number | null; queue_memory_mb?: number | null; queue_memory_limit_mb?: number | null; orchestrator_cpu?: number | null; orchestrator_cpu_limit?: number | null; orchestrator_memory_mb?: number | null; orchestrator_memory_limit_mb?: number | null; orchestrator_min_scale?: number | null; orchestrator_max_scale?: number | null; executor_cpu?: number | null; executor_cpu_limit?: number | null; executor_memory_mb?: number | null; executor_memory_limit_mb?: number | null; redis_cpu?: number | null; redis_cpu_limit?: number | null; redis_memory_mb?: number | null; redis_memory_limit_mb?: number | null; labels?: Record<string, string> | null; annotations?: Record<string, string> | null; service_account_name?: string | null; image_pull_secrets?: (LocalObjectReference)[] | null; volumes?: (Volume)[] | null; volume_mounts?: (VolumeMount)[] | null; init_containers?: (Container)[] | null; sidecars?: (Container)[] | null; db_cpu?: number | null; db_cpu_limit?: number | null; db_memory_mb?: number | null; db_memory_limit_mb?: number | null; db_storage_gi?: number | null; db_max_connections?: number | null };

export type Review = { last_reviewed_time: string | null };

export type Revision = { id: string; status: RevisionStatus; status_message: string | null; source: "external_docker" | "external_image" | "git_hosting" | "github" | "internal_docker" | "internal_source" | "internal_template"; source_revision_config: SourceRevisionConfig; created_at: string; updated_at: string };

export type RevisionHistory = { moves: (Move)[] };

export type RevisionList = { resources: (Revision)[]; offset: number };

export type RevisionReport = { status: "AWAITING_BUILD" | "AWAITING_DEPLOY" | "BUILDING" | "BUILD_FAILED" | "CREATE_FAILED" | "DEPLOYED" | "DEPLOYING" | "DEPLOY_FAILED" | "INTERRUPTED" | "UNKNOWN"; reason?: string | null; repo_commit_sha?: string | null; repo_commit_author?: string | null; repo_commit_subject?: string | null };

export type RevisionStatus = "AWAITING_BUILD" | "AWAITING_DEPLOY" | "BUILDING" | "BUILD_FAILED" | "CREATE_FAILED" | "CREATING" | "DEPLOYED" | "DEPLOYING" | "DEPLOY_FAILED" | "INTERRUPTED" | "QUEUED" | "SKIPPED" | "UNKNOWN";

export type Role = { id: string; name: string; display_name: string; access_scope: string; permissions: (string)[] };

export type RoleChange = { role_id: string };

export type RollForward = { skip?: (string)[] };

export type RotationState = { reencrypted: number; older_key_until: string };

export type RubricItem = { feedback_key: string; description?: string | null; value_descriptions?: Record<string, string> | null; score_descriptions?: Record<string, string> | null; is_required?: boolean | null };

export type RuleInForce = { name: string; summary: string; unit: string; threshold: number; for_s: number; is_below: boolean; is_enabled: boolean; is_default: boolean };

export type RulePatch = { is_enabled?: boolean | null; threshold?: number | null; for_s?: number | null };

export type RunAttachment = { presigned_url: string; mime_type: string };

export type RunItems = { items: (Record<string, unknown>)[]; next_cursor?: string | null; has_more?: boolean; searched_to?: string };

export type RunKey = { run_id: string; session_id?: string | null; start_time?: string | null };

export type RunPage = { cursor?: string | null; limit?: number; select?: ("app_path" | "completion_cost" | "completion_cost_details" | "completion_token_details" | "completion_tokens" | "dotted_order" | "end_time" | "error" | "events" | "extra" | "feedback_stats" | "first_token_time" | "id" | "inputs" | "inputs_s3_urls" | "name" | "outputs" | "outputs_s3_urls" | "parent_run_id" | "parent_run_ids" | "prompt_cost" | "prompt_cost_details" | "prompt_token_details" | "prompt_tokens" | "reference_example_id" | "run_type" | "s3_urls" | "serialized" | "session_id" | "start_time" | "status" | "tags" | "thread_id" | "total_cost" | "total_tokens" | "trace_id" | "trace_tier")[] | null; order?: "asc" | "desc" | null; skip_pagination?: boolean | null; skip_prev_cursor?: boolean | null; id?: (string)[] | null; trace?: string | null; parent_run?: string | null; run_type?: string | null; session?: (string)[] | null; reference_example?: (string)[] | null; execution_order?: number | null; start_time?: string | null; end_time?: string | null; error?: boolean | null; query?: string | null; filter?: string | null; trace_filter?: string | null; tree_filter?: string | null; search_filter?: string | null; is_root?: boolean | null; data_source_type?: "current" | "historical" | "lite" | null };

export type RunStats = { run_count?: number; latency_p50?: number | null; latency_p95?: number | null; latency_p99?: number | null; latency_avg?: number | null; first_token_p50?: number | null; first_token_p99?: number | null; prompt_tokens?: number; completion_tokens?: number; total_tokens?: number; prompt_tokens_p50?: number | null; prompt_tokens_p99?: number | null; completion_tokens_p50?: number | null; completion_tokens_p99?: number | null; median_tokens?: number | null; tokens_p99?: number | null; prompt_cost?: string | null; completion_cost?: string | null; total_cost?: string | null; cost_p50?: number | null; cost_p99?: number | null; error_rate?: number | null; streaming_rate?: number | null; last_run_start_time?: string | null; feedback_stats?: Record<string, FeedbackStats> };

export type RunValue = { name: string; bytes: number; text: string; is_whole: boolean };

export type RunValues = { run_id: string; values: (RunValue)[] };

export type RunningService = { unit: string; user: string; starts_with_machine: boolean };

export type RunsQuery = { project_ids?: (string)[] | null; reference_dataset_id?: string | null; ids?: (string)[] | null; trace_id?: string | null; run_type?: string | null; is_root?: boolean | null; has_error?: boolean | null; filter?: string | null; trace_filter?: string | null; tree_filter?: string | null; reference_examples?: (string)[] | null; min_start_time?: string | null; max_start_time?: string | null; page_size?: number; cursor?: string | null; selects?: (string)[] | null; search_seconds?: number | null; ai_search?: string | null; include_subtree_usage?: boolean | null; min_feedback_modified_at?: string | null; max_feedback_modified_at?: string | null };

export type Scale = { min_scale?: number | null; max_scale?: number | null; queue_min_scale?: number | null; queue_max_scale?: number | null };

export type Secret = { name: string; value: string };

export type SecretChanges = { set?: (Secret)[]; unset?: (string)[] };

export type SecretReference = { name: string; secret_name: string; secret_key: string };

export type Section = { id: string; title: string; description: string | null; index: number; created_at: string; chart_count: number; charts?: (Chart)[] };

export type SectionPatch = { title?: string | null; description?: string | null; index?: number | null };

export type SectionRequest = { title: string; description?: string | null; index?: number | null };

export type Sections = { sections: (Section)[] };

export type SectionsWindow = { after_index?: number | null; start_time: string; end_time?: string | null; stride?: ChartStride; timezone?: string; omit_data?: boolean };

export type SeenRequest = { host: string | null; scheme: string; client: string };

export type ServerRollout = { version: string; status: "done" | "halted" | "running"; deployment_id: string | null; reason: string | null; skipped: (string)[]; started_at: string; changed_at: string };

export type SettingInForce = { name: string; description: string; value: boolean | number | string | null; is_set: boolean; is_default: boolean; is_hidden: boolean };

export type Settings = { id: string; display_name: string; created_at: string; tenant_handle: string };

export type Share = { run_id: string; share_token: string };

export type ShareRequest = { share_token?: string | null; run_id?: string | null };

export type SharedSelection = { selects?: (string)[] | null };

export type SignInLink = { path: string; expires_at: string };

export type Silence = { id: string; rule: string; subject: string | null; until: string; comment: string; created_at: string };

export type SilenceRequest = { rule: string; hours: number; subject?: string | null; comment?: string };

export type SizeLimits = { cpu?: number | null; memory_mb?: number | null; storage_gi?: number | null; scale?: number | null };

export type SourceConfig = { integration_id?: string | null; repo_url?: string | null; deployment_type?: "dev" | "dev_free" | "dev_free_zero" | "dev_zero" | "prod" | null; build_on_push?: boolean | null; custom_url?: string | null; resource_spec?: ResourceSpec | null; listener_id?: string | null; listener_config?: ListenerConfig | null; install_command?: string | null; build_command?: string | null };

export type SourceRevisionConfig = { repo_ref: string | null; graph_config_path: string | null; langgraph_config_path: string | null; repo_commit_sha: string | null; repo_commit_author?: string | null; repo_commit_subject?: string | null; image_uri?: string | null; source_tarball_path?: string | null };

export type SourceRevisionRequest = { repo_ref?: string | null; graph_config_path?: string | null; image_uri?: string | null; source_tarball_path?: string | null };

export type SpaceTaken = { kind: string; place: "database" | "files"; bytes: number; deployment_id?: string | null; deployment?: string | null; dead_bytes?: number };

export type SplitsRequest = { split_name: string; examples: (string)[]; remove?: boolean };

export type StatsRequest = { group_by?: Grouping | null; groups?: (string)[] | null; select?: ("completion_cost" | "completion_tokens" | "completion_tokens_p50" | "completion_tokens_p99" | "cost_p50" | "cost_p99" | "error_rate" | "feedback_stats" | "first_token_p50" | "first_token_p99" | "last_run_start_time" | "latency_avg" | "latency_p50" | "latency_p95" | "latency_p99" | "median_tokens" | "prompt_cost" | "prompt_tokens" | "prompt_tokens_p50" | "prompt_tokens_p99" | "run_count" | "streaming_rate" | "tokens_p99" | "total_cost" | "total_tokens")[] | null; id?: (string)[] | null; trace?: string | null; parent_run?: string | null; run_type?: string | null; session?: (string)[] | null; reference_example?: (string)[] | null; execution_order?: number | null; start_time?: string | null; end_time?: string | null; error?: boolean | null; query?: string | null; filter?: string | null; trace_filter?: string | null; tree_filter?: string | null; search_filter?: string | null; is_root?: boolean | null; data_source_type?: "current" | "historical" | "lite" | null };

export type Stride = { days?: number; hours?: number };

export type SystemState = { settings: (SettingInForce)[]; sign_in_methods: ("api-key" | "oidc" | "password")[]; disk: Disk; service: RunningService | null };

export type TagPatch = { commit_id: string };

export type TestResult = { is_delivered: boolean; error: string | null };

export type ThreadsQuery = { project_id: string; filter?: string | null; trace_filter?: string | null; tree_filter?: string | null; min_start_time?: string | null; max_start_time?: string | null; page_size?: number; cursor?: string | null; thread_filter?: string | null; ai_search?: string | null };

export type TimeSpan = { since: string; until: string };

export type Token = { id: string; url: string; expires_at: string; feedback_key: string };

export type TokenFeedback = { score?: boolean | number | null; value?: boolean | number | string | Record<string, unknown> | null; comment?: string | null; correction?: string | Record<string, unknown> | null; metadata?: Record<string, unknown> | null };

export type TokenRequest = { run_id: string; feedback_key: string; expires_in?: Lifetime | null; expires_at?: string | null; feedback_config?: Record<string, unknown> | null; feedback_id?: string | null };

export type TraceRuns = { items: (Record<string, unknown>)[] };

export type TracedRun = { id: string; name: string; run_type: string; status: string; trace_id: string; dotted_order: string; parent_run_id: string | null; session_id: string; app_path: string; reference_example_id: string | null; start_time: string; end_time: string | null; tags: (string)[]; error: string | null; inputs: unknown; outputs: unknown; extra: unknown; events: unknown; serialized: unknown; parent_run_ids: (string)[]; first_token_time: string | null; thread_id: string | null; prompt_tokens: number; completion_tokens: number; total_tokens: number; prompt_cost: string | null; completion_cost: string | null; total_cost: string | null; prompt_token_details?: Record<string, number> | null; completion_token_details?: Record<string, number> | null; prompt_cost_details: unknown; completion_cost_details: unknown; feedback_stats: unknown; trace_tier?: string | null; s3_urls?: Record<string, RunAttachment> | null };

export type TracedThread = { thread_id: string; count: number; num_errored_turns: number; min_start_time: string; max_start_time: string; start_time: string; first_trace_id: string; last_trace_id: string; trace_id: string; latency_p50: number | null; latency_p99: number | null; total_tokens: number; total_cost: number | null; first_inputs: string | null; last_outputs: string | null; last_error: string | null };

export type TracedThreads = { items: (TracedThread)[]; next_cursor?: string | null };

export type TracerSession = { id: string; tenant_id: string; name: string; start_time: string; end_time?: string | null; description?: string | null; extra?: Record<string, unknown> | null; reference_dataset_id?: string | null; default_dataset_id?: string | null; trace_tier?: string | null; run_count?: number | null; latency_p50?: number | null; latency_p99?: number | null; first_token_p50?: number | null; first_token_p99?: number | null; prompt_tokens?: number | null; completion_tokens?: number | null; total_tokens?: number | null; prompt_cost?: string | null; completion_cost?: string | null; total_cost?: string | null; error_rate?: number | null; streaming_rate?: number | null; last_run_start_time?: string | null; feedback_stats?: Record<string, unknown> | null; session_feedback_stats?: Record<string, unknown> | null };

export type TracesToDelete = { session_id: string; trace_ids: (string)[] };

export type Upgrade = { at: string; before: string | null; after: string; backup: string | null };

export type UpgradeState = { version: string; started_at: string; is_automatic: boolean; rollout: ServerRollout | null; agents: (DeploymentServer)[]; last: Upgrade | null };

export type UploadAddress = { upload_url: string; object_path: string; upload_headers?: Record<string, string> };

export type UploadRequest = { supports_upload_headers?: boolean };

export type Usage = { stride: Stride; usage: (UsageRecord)[] };

export type UsageLimit = { id: string; tenant_id: string; limit_type: string; limit_value: number; created_at: string; updated_at: string };

export type UsageLimitRequest = { limit_type: "monthly_longlived_traces" | "monthly_traces"; limit_value: number };

export type UsageRecord = { time_bucket: string; dimensions: Record<string, unknown>; traces: number };

export type UsageState = { in_reject_set: boolean; usage_limit_type?: string | null; tenant_limit?: number | null };

export type Version = { as_of: string; tags: (string)[]; number: number };

export type VersionTagRequest = { as_of: string; tag: string };

export type Volume = { name: string; configMap?: Record<string, unknown> | null; secret?: Record<string, unknown> | null; emptyDir?: Record<string, unknown> | null; persistentVolumeClaim?: Record<string, unknown> | null; nfs?: Record<string, unknown> | null; projected?: Record<string, unknown> | null; downwardAPI?: Record<string, unknown> | null; csi?: Record<string, unknown> | null };

export type VolumeMount = { name: string; mountPath: string; subPath?: string | null; mountPropagation?: string | null; readOnly?: boolean | null; subPathExpr?: string | null };

export type Workspace = { id: string; organization_id: string; display_name: string; tenant_handle: string; created_at: string; role_id?: string | null; role_name?: string | null; permissions?: (string)[]; is_personal?: boolean; is_deleted?: boolean; read_only?: boolean };

export type WorkspaceMemberRequest = { user_id: string; role_id?: string };

export type WorkspacePatch = { display_name: string };

export type WorkspaceRequest = { display_name: string; id?: string | null; tenant_handle?: string | null };

export interface Operations {
  "GET /": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "GET /alerts": { path: Record<never, never>; query: { status?: "ended" | "open"; limit?: number }; body: undefined; response: (Alert)[] };
  "GET /alerts/channels": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (Channel)[] };
  "POST /alerts/channels": { path: Record<never, never>; query: Record<never, never>; body: ChannelRequest; response: NewChannel };
  "DELETE /alerts/channels/{channel_id}": { path: { channel_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "POST /alerts/channels/{channel_id}/test": { path: { channel_id: string }; query: Record<never, never>; body: undefined; response: TestResult };
  "GET /alerts/rules": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (RuleInForce)[] };
  "PATCH /alerts/rules/{name}": { path: { name: string }; query: Record<never, never>; body: RulePatch; response: RuleInForce };
  "GET /alerts/silences": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (Silence)[] };
  "POST /alerts/silences": { path: Record<never, never>; query: Record<never, never>; body: SilenceRequest; response: Silence };
  "DELETE /alerts/silences/{silence_id}": { path: { silence_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /annotation-queues": { path: Record<never, never>; query: { ids?: (string)[]; name?: string; name_contains?: string; limit?: number; offset?: number }; body: undefined; response: (Queue)[] };
  "POST /annotation-queues": { path: Record<never, never>; query: Record<never, never>; body: QueueRequest; response: Queue };
  "DELETE /annotation-queues/{queue_id}": { path: { queue_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /annotation-queues/{queue_id}": { path: { queue_id: string }; query: Record<never, never>; body: undefined; response: Queue };
  "PATCH /annotation-queues/{queue_id}": { path: { queue_id: string }; query: Record<never, never>; body: QueuePatch; response: Queue };
  "GET /annotation-queues/{queue_id}/run/{index}": { path: { queue_id: string; index: number }; query: Record<never, never>; body: undefined; response: Record<string, unknown> };
  "GET /annotation-queues/{queue_id}/runs": { path: { queue_id: string }; query: { status?: "completed" | "needs_my_review" | "needs_others_review"; exclude_values?: boolean; limit?: number; offset?: number }; body: undefined; response: (Record<string, unknown>)[] };
  "POST /annotation-queues/{queue_id}/runs": { path: { queue_id: string }; query: Record<never, never>; body: (string)[]; response: (QueuedRun)[] };
  "POST /annotation-queues/{queue_id}/runs/by-key": { path: { queue_id: string }; query: Record<never, never>; body: (RunKey)[]; response: (QueuedRun)[] };
  "DELETE /annotation-queues/{queue_id}/runs/{run_id}": { path: { queue_id: string; run_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "PATCH /annotation-queues/{queue_id}/runs/{run_id}": { path: { queue_id: string; run_id: string }; query: Record<never, never>; body: Review; response: undefined };
  "GET /annotation-queues/{queue_id}/size": { path: { queue_id: string }; query: Record<never, never>; body: undefined; response: QueueSize };
  "GET /api-key": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (Key)[] };
  "POST /api-key": { path: Record<never, never>; query: Record<never, never>; body: KeyRequest; response: NewKey };
  "GET /api-key/current": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (Key)[] };
  "POST /api-key/current": { path: Record<never, never>; query: Record<never, never>; body: KeyRequest; response: NewKey };
  "DELETE /api-key/current/{key_id}": { path: { key_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "DELETE /api-key/{key_id}": { path: { key_id: string }; query: { force?: boolean }; body: undefined; response: undefined };
  "GET /audit-log": { path: Record<never, never>; query: { actor?: string; action?: string; object?: string; outcome?: "failed" | "ok" | "refused"; start_time?: string; end_time?: string; workspace_id?: string; limit?: number; cursor?: number }; body: undefined; response: AuditPage };
  "GET /audit-log/export": { path: Record<never, never>; query: { actor?: string; action?: string; object?: string; outcome?: "failed" | "ok" | "refused"; start_time?: string; end_time?: string; workspace_id?: string; format?: "csv" | "jsonl" }; body: undefined; response: AuditEntry };
  "GET /audit-log/verification": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: AuditChain };
  "GET /audit-logs": { path: Record<never, never>; query: { start_time: string; end_time: string; limit?: number; cursor?: string; workspace_id?: string; operations?: (string)[] }; body: undefined; response: ActivityPage };
  "GET /auth": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: Identity };
  "GET /auth/public": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: PublicIdentity };
  "POST /beacon": { path: Record<never, never>; query: Record<never, never>; body: Record<string, unknown>; response: Accepted };
  "POST /charts": { path: Record<never, never>; query: Record<never, never>; body: SectionsWindow; response: Sections };
  "POST /charts/create": { path: Record<never, never>; query: Record<never, never>; body: ChartRequest; response: Chart };
  "POST /charts/preview": { path: Record<never, never>; query: Record<never, never>; body: PreviewRequest; response: Preview };
  "GET /charts/section": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (Section)[] };
  "POST /charts/section": { path: Record<never, never>; query: Record<never, never>; body: SectionRequest; response: Section };
  "DELETE /charts/section/{section_id}": { path: { section_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "PATCH /charts/section/{section_id}": { path: { section_id: string }; query: Record<never, never>; body: SectionPatch; response: Section };
  "POST /charts/section/{section_id}": { path: { section_id: string }; query: Record<never, never>; body: ChartWindow; response: Section };
  "DELETE /charts/{chart_id}": { path: { chart_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "PATCH /charts/{chart_id}": { path: { chart_id: string }; query: Record<never, never>; body: ChartPatch; response: Chart };
  "POST /charts/{chart_id}": { path: { chart_id: string }; query: Record<never, never>; body: ChartWindow; response: Chart };
  "GET /commits/{owner}/{repo}": { path: { owner: string; repo: string }; query: { limit?: number; offset?: number; include_model?: boolean }; body: undefined; response: CommitList };
  "POST /commits/{owner}/{repo}": { path: { owner: string; repo: string }; query: Record<never, never>; body: CommitRequest; response: CommitResponse };
  "GET /commits/{owner}/{repo}/": { path: { owner: string; repo: string }; query: { limit?: number; offset?: number; include_model?: boolean }; body: undefined; response: CommitList };
  "GET /commits/{owner}/{repo}/{commit}": { path: { owner: string; repo: string; commit: string }; query: { include_model?: boolean }; body: undefined; response: Manifest };
  "GET /console": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "GET /console/{path}": { path: { path: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /context/{prompt_name}/{commit}": { path: { prompt_name: string; commit: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /datasets": { path: Record<never, never>; query: { id?: (string)[]; name?: string; name_contains?: string; data_type?: ("chat" | "kv" | "llm")[]; metadata?: unknown; sort_by?: "created_at" | "example_count" | "last_session_start_time" | "modified_at" | "name" | "session_count"; sort_by_desc?: boolean; limit?: number; offset?: number }; body: undefined; response: (Dataset)[] };
  "POST /datasets": { path: Record<never, never>; query: Record<never, never>; body: DatasetRequest; response: Dataset };
  "POST /datasets/comparative": { path: Record<never, never>; query: Record<never, never>; body: ComparisonRequest; response: Comparison };
  "DELETE /datasets/comparative/{comparison_id}": { path: { comparison_id: string }; query: Record<never, never>; body: undefined; response: Accepted };
  "POST /datasets/upload": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: Dataset };
  "DELETE /datasets/{dataset_id}": { path: { dataset_id: string }; query: Record<never, never>; body: undefined; response: Accepted };
  "GET /datasets/{dataset_id}": { path: { dataset_id: string }; query: Record<never, never>; body: undefined; response: Dataset };
  "PATCH /datasets/{dataset_id}": { path: { dataset_id: string }; query: Record<never, never>; body: DatasetPatch; response: Dataset };
  "GET /datasets/{dataset_id}/comparative": { path: { dataset_id: string }; query: { id?: (string)[]; name?: string; name_contains?: string; limit?: number; offset?: number }; body: undefined; response: (Comparison)[] };
  "GET /datasets/{dataset_id}/csv": { path: { dataset_id: string }; query: { as_of?: string }; body: undefined; response: undefined };
  "GET /datasets/{dataset_id}/jsonl": { path: { dataset_id: string }; query: { as_of?: string }; body: undefined; response: undefined };
  "GET /datasets/{dataset_id}/openai": { path: { dataset_id: string }; query: { as_of?: string }; body: undefined; response: undefined };
  "GET /datasets/{dataset_id}/openai_ft": { path: { dataset_id: string }; query: { as_of?: string }; body: undefined; response: undefined };
  "POST /datasets/{dataset_id}/runs": { path: { dataset_id: string }; query: Record<never, never>; body: ExperimentPage; response: (ExampleWithRuns)[] };
  "DELETE /datasets/{dataset_id}/share": { path: { dataset_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /datasets/{dataset_id}/share": { path: { dataset_id: string }; query: Record<never, never>; body: undefined; response: DatasetShare };
  "PUT /datasets/{dataset_id}/share": { path: { dataset_id: string }; query: Record<never, never>; body: undefined; response: DatasetShare };
  "GET /datasets/{dataset_id}/splits": { path: { dataset_id: string }; query: { as_of?: string }; body: undefined; response: (string)[] };
  "PUT /datasets/{dataset_id}/splits": { path: { dataset_id: string }; query: Record<never, never>; body: SplitsRequest; response: (string)[] };
  "PUT /datasets/{dataset_id}/tags": { path: { dataset_id: string }; query: Record<never, never>; body: VersionTagRequest; response: Version };
  "GET /datasets/{dataset_id}/version": { path: { dataset_id: string }; query: { as_of?: string; tag?: string }; body: undefined; response: Version };
  "GET /datasets/{dataset_id}/versions": { path: { dataset_id: string }; query: { search?: string; limit?: number; offset?: number }; body: undefined; response: (Version)[] };
  "GET /datasets/{dataset_id}/versions/diff": { path: { dataset_id: string }; query: { from_version: string; to_version: string }; body: undefined; response: Difference };
  "GET /device": { path: Record<never, never>; query: { user_code?: string }; body: undefined; response: undefined };
  "POST /device": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "POST /device/decision": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "DELETE /examples": { path: Record<never, never>; query: { example_ids: (string)[]; as_of?: string }; body: undefined; response: Accepted };
  "GET /examples": { path: Record<never, never>; query: { dataset?: string; id?: (string)[]; as_of?: string; metadata?: unknown; splits?: (string)[]; filter?: string; order?: "id" | "random" | "recent" | "recently_created"; random_seed?: number; select?: (string)[]; exclude_default_fields?: boolean; inline_s3_urls?: boolean; limit?: number; offset?: number }; body: undefined; response: (Example)[] };
  "POST /examples": { path: Record<never, never>; query: Record<never, never>; body: ExampleRequest; response: Example };
  "PATCH /examples/bulk": { path: Record<never, never>; query: Record<never, never>; body: (NamedPatch)[]; response: ExamplesChanged };
  "POST /examples/bulk": { path: Record<never, never>; query: Record<never, never>; body: (ExampleRequest)[]; response: (Example)[] };
  "DELETE /examples/{example_id}": { path: { example_id: string }; query: Record<never, never>; body: undefined; response: Accepted };
  "GET /examples/{example_id}": { path: { example_id: string }; query: { as_of?: string }; body: undefined; response: Example };
  "PATCH /examples/{example_id}": { path: { example_id: string }; query: Record<never, never>; body: ExamplePatch; response: ExamplesChanged };
  "GET /feedback": { path: Record<never, never>; query: { run?: (string)[]; session?: (string)[]; key?: (string)[]; source?: ("api" | "app" | "auto_eval" | "model")[]; user?: (string)[]; has_comment?: boolean; has_score?: boolean; level?: "run" | "session"; limit?: number; offset?: number }; body: undefined; response: (Feedback)[] };
  "POST /feedback": { path: Record<never, never>; query: Record<never, never>; body: FeedbackRequest; response: Feedback };
  "DELETE /feedback-configs": { path: Record<never, never>; query: { feedback_key: string }; body: undefined; response: undefined };
  "GET /feedback-configs": { path: Record<never, never>; query: { key?: (string)[]; name_contains?: string; limit?: number; offset?: number }; body: undefined; response: (FeedbackConfig)[] };
  "PATCH /feedback-configs": { path: Record<never, never>; query: Record<never, never>; body: ConfigPatch; response: FeedbackConfig };
  "POST /feedback-configs": { path: Record<never, never>; query: Record<never, never>; body: ConfigRequest; response: FeedbackConfig };
  "GET /feedback/tokens": { path: Record<never, never>; query: { run_id: string; limit?: number; offset?: number }; body: undefined; response: (Token)[] };
  "POST /feedback/tokens": { path: Record<never, never>; query: Record<never, never>; body: (TokenRequest)[] | TokenRequest; response: (Token)[] | Token };
  "GET /feedback/tokens/{token}": { path: { token: string }; query: { score?: number; value?: string; comment?: string; correction?: string }; body: undefined; response: Accepted };
  "POST /feedback/tokens/{token}": { path: { token: string }; query: Record<never, never>; body: TokenFeedback; response: Accepted };
  "DELETE /feedback/{feedback_id}": { path: { feedback_id: string }; query: Record<never, never>; body: undefined; response: Accepted };
  "GET /feedback/{feedback_id}": { path: { feedback_id: string }; query: Record<never, never>; body: undefined; response: Feedback };
  "PATCH /feedback/{feedback_id}": { path: { feedback_id: string }; query: Record<never, never>; body: FeedbackPatch; response: Feedback };
  "POST /generate": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: Accepted };
  "GET /help": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "GET /help/{path}": { path: { path: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /info": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: PlatformInfo };
  "GET /info/health": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: unknown };
  "DELETE /internal/deployments/{deployment_id}": { path: { deployment_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "PUT /internal/deployments/{deployment_id}/metrics": { path: { deployment_id: string }; query: Record<never, never>; body: MetricsReport; response: undefined };
  "GET /internal/deployments/{deployment_id}/revisions/{revision_id}": { path: { deployment_id: string; revision_id: string }; query: Record<never, never>; body: undefined; response: DesiredRevision };
  "GET /internal/deployments/{deployment_id}/revisions/{revision_id}/archive": { path: { deployment_id: string; revision_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "POST /internal/deployments/{deployment_id}/revisions/{revision_id}/logs": { path: { deployment_id: string; revision_id: string }; query: Record<never, never>; body: LogBatch; response: undefined };
  "PUT /internal/deployments/{deployment_id}/revisions/{revision_id}/status": { path: { deployment_id: string; revision_id: string }; query: Record<never, never>; body: RevisionReport; response: undefined };
  "PUT /internal/deployments/{deployment_id}/status": { path: { deployment_id: string }; query: Record<never, never>; body: DeploymentReport; response: undefined };
  "GET /internal/front/names": { path: Record<never, never>; query: { domain: string }; body: undefined; response: undefined };
  "POST /internal/listeners/connect": { path: Record<never, never>; query: Record<never, never>; body: Connect; response: Connected };
  "GET /internal/listeners/{listener_id}/desired": { path: { listener_id: string }; query: { after?: number; wait_s?: number }; body: undefined; response: Desired };
  "POST /likes/{owner}/{repo}": { path: { owner: string; repo: string }; query: Record<never, never>; body: LikeRequest; response: Likes };
  "GET /limits": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: Limits };
  "GET /login": { path: Record<never, never>; query: { next?: string }; body: undefined; response: undefined };
  "POST /login": { path: Record<never, never>; query: Record<never, never>; body: Credentials; response: LoggedIn };
  "POST /login/key": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "GET /login/link": { path: Record<never, never>; query: { token?: string }; body: undefined; response: undefined };
  "GET /login/oidc": { path: Record<never, never>; query: { next?: string }; body: undefined; response: undefined };
  "GET /login/oidc/callback": { path: Record<never, never>; query: { state?: string; code?: string; error?: string; iss?: string }; body: undefined; response: undefined };
  "POST /login/out": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "POST /login/password": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "POST /logout": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "POST /metadata/submit": { path: Record<never, never>; query: Record<never, never>; body: Record<string, unknown>; response: Accepted };
  "GET /metrics": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "GET /model-price-map": { path: Record<never, never>; query: { q?: string; offset?: number; limit?: number }; body: undefined; response: (ModelPrice)[] };
  "POST /model-price-map": { path: Record<never, never>; query: Record<never, never>; body: PriceRequest; response: ModelPrice };
  "GET /model-price-map/models": { path: Record<never, never>; query: { days?: number }; body: undefined; response: (ModelInUse)[] };
  "GET /model-price-map/recomputations": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (Recomputation)[] };
  "POST /model-price-map/recomputations": { path: Record<never, never>; query: Record<never, never>; body: RecomputationRequest; response: Recomputation };
  "DELETE /model-price-map/recomputations/{recomputation_id}": { path: { recomputation_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /model-price-map/recomputations/{recomputation_id}": { path: { recomputation_id: string }; query: Record<never, never>; body: undefined; response: Recomputation };
  "DELETE /model-price-map/{price_id}": { path: { price_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "PUT /model-price-map/{price_id}": { path: { price_id: string }; query: Record<never, never>; body: PriceRequest; response: ModelPrice };
  "GET /o/{workspace_id}/{path}": { path: { workspace_id: string; path: string }; query: { selectedSessions?: string }; body: undefined; response: undefined };
  "GET /oauth/authorize": { path: Record<never, never>; query: { response_type: "code"; client_id: "portside-cli"; redirect_uri: string; state: string; code_challenge: string; code_challenge_method: "S256"; host_name?: string }; body: undefined; response: undefined };
  "POST /oauth/authorize": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "POST /oauth/device": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: DeviceAuthorization };
  "POST /oauth/token": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: LoggedIn };
  "GET /ok": { path: Record<never, never>; query: { check_db?: boolean }; body: undefined; response: unknown };
  "GET /orgs/current": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: Organization };
  "PATCH /orgs/current": { path: Record<never, never>; query: Record<never, never>; body: WorkspacePatch; response: Organization };
  "GET /orgs/current/billing/costs": { path: Record<never, never>; query: { start_time: string; end_time: string; workspace_ids: (string)[]; group_by?: "api_key" | "model" | "project" | "user" | "workspace" }; body: undefined; response: Costs };
  "GET /orgs/current/billing/costs/export": { path: Record<never, never>; query: { start_time: string; end_time: string; workspace_ids: (string)[]; group_by?: "api_key" | "model" | "project" | "user" | "workspace" }; body: undefined; response: undefined };
  "GET /orgs/current/billing/granular-usage": { path: Record<never, never>; query: { start_time: string; end_time: string; workspace_ids: (string)[]; group_by?: GroupBy }; body: undefined; response: Usage };
  "GET /orgs/current/billing/granular-usage/export": { path: Record<never, never>; query: { start_time: string; end_time: string; workspace_ids: (string)[]; group_by?: GroupBy }; body: undefined; response: undefined };
  "GET /orgs/current/billing/usage": { path: Record<never, never>; query: { starting_on: string; ending_before: string; on_current_plan?: true }; body: undefined; response: (BilledMetric)[] };
  "GET /orgs/current/members": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (Member)[] };
  "POST /orgs/current/members": { path: Record<never, never>; query: Record<never, never>; body: MemberRequest; response: Member };
  "DELETE /orgs/current/members/{user_id}": { path: { user_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "PATCH /orgs/current/members/{user_id}": { path: { user_id: string }; query: Record<never, never>; body: RoleChange; response: Member };
  "GET /orgs/current/personal-access-tokens": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (Key)[] };
  "POST /orgs/current/personal-access-tokens": { path: Record<never, never>; query: Record<never, never>; body: KeyRequest; response: NewKey };
  "DELETE /orgs/current/personal-access-tokens/{key_id}": { path: { key_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /orgs/current/roles": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (Role)[] };
  "GET /orgs/current/service-keys": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (Key)[] };
  "POST /orgs/current/service-keys": { path: Record<never, never>; query: Record<never, never>; body: KeyRequest; response: NewKey };
  "DELETE /orgs/current/service-keys/{key_id}": { path: { key_id: string }; query: { force?: boolean }; body: undefined; response: undefined };
  "GET /orgs/current/sessions": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (LoginSession)[] };
  "DELETE /orgs/current/sessions/{session_id}": { path: { session_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "POST /otel/v1/traces": { path: Record<never, never>; query: Record<never, never>; body: Record<string, unknown>; response: Record<string, unknown> };
  "POST /platform/datasets/examples/delete": { path: Record<never, never>; query: Record<never, never>; body: ExampleDeletion; response: Accepted };
  "PATCH /platform/datasets/{dataset_id}/examples": { path: { dataset_id: string }; query: Record<never, never>; body: undefined; response: Changed };
  "POST /platform/datasets/{dataset_id}/examples": { path: { dataset_id: string }; query: Record<never, never>; body: undefined; response: Changed };
  "POST /platform/examples/multipart": { path: Record<never, never>; query: { as_of?: string }; body: undefined; response: Changed };
  "DELETE /platform/hub/repos/{owner}/{repo}/directories": { path: { owner: string; repo: string }; query: { repo_type?: "agent" | "skill" }; body: undefined; response: undefined };
  "GET /platform/hub/repos/{owner}/{repo}/directories": { path: { owner: string; repo: string }; query: { commit?: string; repo_type?: "agent" | "skill" }; body: undefined; response: Directory };
  "POST /platform/hub/repos/{owner}/{repo}/directories/commits": { path: { owner: string; repo: string }; query: Record<never, never>; body: DirectoryCommitRequest; response: CommitResponse };
  "GET /prompts/{prompt_name}/{commit}": { path: { prompt_name: string; commit: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /public/download": { path: Record<never, never>; query: { token: string }; body: undefined; response: undefined };
  "GET /public/download/examples": { path: Record<never, never>; query: { token: string }; body: undefined; response: undefined };
  "GET /public/{share_token}/datasets": { path: { share_token: string }; query: Record<never, never>; body: undefined; response: Dataset };
  "GET /public/{share_token}/datasets/sessions": { path: { share_token: string }; query: { name?: string; name_contains?: string; id?: (string)[]; limit?: number; offset?: number; metadata?: unknown; reference_dataset?: (string)[]; reference_free?: boolean; sort_by?: "error_rate" | "feedback" | "last_run_start_time" | "latency_p50" | "latency_p99" | "name" | "runs_count" | "start_time"; sort_by_desc?: boolean; sort_by_feedback_key?: string; include_stats?: boolean; facets?: false; filter?: string; tag_value_id?: (string)[] }; body: undefined; response: (TracerSession)[] };
  "GET /public/{share_token}/examples": { path: { share_token: string }; query: { id?: (string)[]; as_of?: string; metadata?: unknown; splits?: (string)[]; filter?: string; limit?: number; offset?: number }; body: undefined; response: (Example)[] };
  "GET /public/{share_token}/feedbacks": { path: { share_token: string }; query: { run?: (string)[]; key?: (string)[]; limit?: number; offset?: number }; body: undefined; response: (Feedback)[] };
  "GET /public/{share_token}/r": { path: { share_token: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /public/{share_token}/run": { path: { share_token: string }; query: Record<never, never>; body: undefined; response: TracedRun };
  "GET /public/{share_token}/run/{run_id}": { path: { share_token: string; run_id: string }; query: Record<never, never>; body: undefined; response: TracedRun };
  "GET /public/{share_token}/run/{run_id}/values": { path: { share_token: string; run_id: string }; query: { chars?: number }; body: undefined; response: RunValues };
  "GET /public/{share_token}/run/{run_id}/values/{name}": { path: { share_token: string; run_id: string; name: string }; query: Record<never, never>; body: undefined; response: unknown };
  "POST /public/{share_token}/runs/query": { path: { share_token: string }; query: Record<never, never>; body: RunPage; response: FoundRuns };
  "GET /repos": { path: Record<never, never>; query: { repo_type?: "agent" | "prompt" | "skill"; query?: string; match_prefix?: boolean; is_public?: boolean; is_archived?: "allow" | "false" | "true"; tags?: (string)[]; sort_field?: "num_downloads" | "num_likes" | "num_views" | "updated_at"; sort_direction?: "asc" | "desc"; limit?: number; offset?: number }; body: undefined; response: PromptList };
  "POST /repos": { path: Record<never, never>; query: Record<never, never>; body: PromptRequest; response: PromptResponse };
  "GET /repos/": { path: Record<never, never>; query: { repo_type?: "agent" | "prompt" | "skill"; query?: string; match_prefix?: boolean; is_public?: boolean; is_archived?: "allow" | "false" | "true"; tags?: (string)[]; sort_field?: "num_downloads" | "num_likes" | "num_views" | "updated_at"; sort_direction?: "asc" | "desc"; limit?: number; offset?: number }; body: undefined; response: PromptList };
  "POST /repos/": { path: Record<never, never>; query: Record<never, never>; body: PromptRequest; response: PromptResponse };
  "DELETE /repos/{owner}/{repo}": { path: { owner: string; repo: string }; query: Record<never, never>; body: undefined; response: unknown };
  "GET /repos/{owner}/{repo}": { path: { owner: string; repo: string }; query: Record<never, never>; body: undefined; response: PromptResponse };
  "PATCH /repos/{owner}/{repo}": { path: { owner: string; repo: string }; query: Record<never, never>; body: PromptPatch; response: PromptResponse };
  "GET /repos/{owner}/{repo}/tags": { path: { owner: string; repo: string }; query: Record<never, never>; body: undefined; response: (CommitTag)[] };
  "POST /repos/{owner}/{repo}/tags": { path: { owner: string; repo: string }; query: Record<never, never>; body: CommitTagRequest; response: CommitTag };
  "DELETE /repos/{owner}/{repo}/tags/{tag_name}": { path: { owner: string; repo: string; tag_name: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /repos/{owner}/{repo}/tags/{tag_name}": { path: { owner: string; repo: string; tag_name: string }; query: Record<never, never>; body: undefined; response: CommitTag };
  "PATCH /repos/{owner}/{repo}/tags/{tag_name}": { path: { owner: string; repo: string; tag_name: string }; query: Record<never, never>; body: TagPatch; response: CommitTag };
  "POST /runs": { path: Record<never, never>; query: Record<never, never>; body: Record<string, unknown>; response: Accepted };
  "POST /runs/batch": { path: Record<never, never>; query: Record<never, never>; body: Record<string, unknown>; response: Accepted };
  "POST /runs/delete": { path: Record<never, never>; query: Record<never, never>; body: TracesToDelete; response: Accepted };
  "POST /runs/multipart": { path: Record<never, never>; query: { imported?: boolean }; body: undefined; response: Accepted };
  "POST /runs/query": { path: Record<never, never>; query: Record<never, never>; body: RunPage; response: FoundRuns };
  "POST /runs/rules/trigger": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: Accepted };
  "POST /runs/rules/{rule_id}/trigger": { path: { rule_id: string }; query: Record<never, never>; body: undefined; response: Accepted };
  "POST /runs/stats": { path: Record<never, never>; query: Record<never, never>; body: StatsRequest; response: RunStats };
  "GET /runs/{run_id}": { path: { run_id: string }; query: { exclude_serialized?: boolean; exclude_s3_stored_attributes?: boolean }; body: undefined; response: TracedRun };
  "PATCH /runs/{run_id}": { path: { run_id: string }; query: Record<never, never>; body: Record<string, unknown>; response: Accepted };
  "DELETE /runs/{run_id}/share": { path: { run_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /runs/{run_id}/share": { path: { run_id: string }; query: Record<never, never>; body: undefined; response: Share | null };
  "PUT /runs/{run_id}/share": { path: { run_id: string }; query: Record<never, never>; body: ShareRequest; response: Share };
  "GET /runs/{run_id}/values": { path: { run_id: string }; query: { chars?: number }; body: undefined; response: RunValues };
  "GET /runs/{run_id}/values/{name}": { path: { run_id: string; name: string }; query: Record<never, never>; body: undefined; response: unknown };
  "DELETE /sessions": { path: Record<never, never>; query: { session_ids: (string)[] }; body: undefined; response: Accepted };
  "GET /sessions": { path: Record<never, never>; query: { name?: string; name_contains?: string; id?: (string)[]; limit?: number; offset?: number; metadata?: unknown; reference_dataset?: (string)[]; reference_free?: boolean; sort_by?: "error_rate" | "feedback" | "last_run_start_time" | "latency_p50" | "latency_p99" | "name" | "runs_count" | "start_time"; sort_by_desc?: boolean; sort_by_feedback_key?: string; include_stats?: boolean; facets?: false; filter?: string; tag_value_id?: (string)[] }; body: undefined; response: (TracerSession)[] };
  "POST /sessions": { path: Record<never, never>; query: { upsert?: boolean }; body: ProjectRequest; response: TracerSession };
  "DELETE /sessions/{session_id}": { path: { session_id: string }; query: Record<never, never>; body: undefined; response: Accepted };
  "GET /sessions/{session_id}": { path: { session_id: string }; query: { include_stats?: boolean }; body: undefined; response: TracerSession };
  "PATCH /sessions/{session_id}": { path: { session_id: string }; query: Record<never, never>; body: ProjectPatch; response: TracerSession };
  "GET /settings": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: Settings };
  "GET /system": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: SystemState };
  "GET /system/backups": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: Backups };
  "POST /system/backups": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: undefined };
  "GET /system/disk": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: DiskReport };
  "GET /system/doctor": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: Diagnosis };
  "POST /system/master-key/rotate": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: RotationState };
  "GET /system/request": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: SeenRequest };
  "GET /system/upgrade": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: UpgradeState };
  "POST /system/upgrade/roll-forward": { path: Record<never, never>; query: Record<never, never>; body: RollForward; response: UpgradeState };
  "GET /usage-limits": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (UsageLimit)[] };
  "PUT /usage-limits": { path: Record<never, never>; query: Record<never, never>; body: UsageLimitRequest; response: UsageLimit };
  "DELETE /usage-limits/{limit_id}": { path: { limit_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "PUT /users/me/password": { path: Record<never, never>; query: Record<never, never>; body: NewPassword; response: undefined };
  "GET /users/me/sessions": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (LoginSession)[] };
  "DELETE /users/me/sessions/{session_id}": { path: { session_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "POST /users/me/sign-in-links": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: SignInLink };
  "POST /v1/beacon": { path: Record<never, never>; query: Record<never, never>; body: Record<string, unknown>; response: Accepted };
  "GET /v1/integrations/forge/github/install": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (Integration)[] };
  "GET /v1/integrations/forge/github/{integration_id}/repos": { path: { integration_id: string }; query: Record<never, never>; body: undefined; response: (GitRepository)[] };
  "POST /v1/integrations/git_hosting": { path: Record<never, never>; query: Record<never, never>; body: IntegrationCreate; response: Integration };
  "GET /v1/integrations/git_hosting/install": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (Integration)[] };
  "DELETE /v1/integrations/git_hosting/{integration_id}": { path: { integration_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "PATCH /v1/integrations/git_hosting/{integration_id}": { path: { integration_id: string }; query: Record<never, never>; body: IntegrationPatch; response: Integration };
  "GET /v1/integrations/git_hosting/{integration_id}/repos": { path: { integration_id: string }; query: Record<never, never>; body: undefined; response: (GitRepository)[] };
  "POST /v1/integrations/git_hosting/{integration_id}/webhook": { path: { integration_id: string }; query: Record<never, never>; body: undefined; response: PushWebhook };
  "GET /v1/integrations/github/install": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (Integration)[] };
  "GET /v1/integrations/github/{integration_id}/repos": { path: { integration_id: string }; query: Record<never, never>; body: undefined; response: (GitRepository)[] };
  "POST /v1/metadata/submit": { path: Record<never, never>; query: Record<never, never>; body: Record<string, unknown>; response: Accepted };
  "POST /v1/platform/datasets/examples/delete": { path: Record<never, never>; query: Record<never, never>; body: ExampleDeletion; response: Accepted };
  "PATCH /v1/platform/datasets/{dataset_id}/examples": { path: { dataset_id: string }; query: Record<never, never>; body: undefined; response: Changed };
  "POST /v1/platform/datasets/{dataset_id}/examples": { path: { dataset_id: string }; query: Record<never, never>; body: undefined; response: Changed };
  "POST /v1/platform/examples/multipart": { path: Record<never, never>; query: { as_of?: string }; body: undefined; response: Changed };
  "DELETE /v1/platform/hub/repos/{owner}/{repo}/directories": { path: { owner: string; repo: string }; query: { repo_type?: "agent" | "skill" }; body: undefined; response: undefined };
  "GET /v1/platform/hub/repos/{owner}/{repo}/directories": { path: { owner: string; repo: string }; query: { commit?: string; repo_type?: "agent" | "skill" }; body: undefined; response: Directory };
  "POST /v1/platform/hub/repos/{owner}/{repo}/directories/commits": { path: { owner: string; repo: string }; query: Record<never, never>; body: DirectoryCommitRequest; response: CommitResponse };
  "POST /v1/projects/{project_id}/deploy_logs": { path: { project_id: string }; query: Record<never, never>; body: LogFilter; response: LogPage };
  "POST /v1/projects/{project_id}/revisions/{revision_id}/build_logs": { path: { project_id: string; revision_id: string }; query: Record<never, never>; body: LogFilter; response: LogPage };
  "POST /v1/projects/{project_id}/revisions/{revision_id}/deploy_logs": { path: { project_id: string; revision_id: string }; query: Record<never, never>; body: LogFilter; response: LogPage };
  "POST /v1/webhooks/{integration_id}": { path: { integration_id: string }; query: Record<never, never>; body: Record<string, unknown>; response: PushResponse };
  "POST /v2/datasets/{dataset_id}/experiment-runs": { path: { dataset_id: string }; query: Record<never, never>; body: ExperimentRunsQuery; response: ExperimentRuns };
  "DELETE /v2/deployments": { path: Record<never, never>; query: { deployment_ids: (string)[] }; body: undefined; response: DeletedDeployments };
  "GET /v2/deployments": { path: Record<never, never>; query: { limit?: number; offset?: number; name?: string; name_contains?: string; status?: DeploymentStatus; deployment_type?: "dev" | "dev_free" | "dev_free_zero" | "dev_zero" | "prod"; deployment_ids?: (string)[]; tracing_project_id?: string; image_version?: string; remote_reconciled?: boolean; tag_value_ids?: (string)[]; agent_id?: string; agent_environment?: string }; body: undefined; response: DeploymentList };
  "POST /v2/deployments": { path: Record<never, never>; query: Record<never, never>; body: DeploymentCreate; response: Deployment };
  "DELETE /v2/deployments/{deployment_id}": { path: { deployment_id: string }; query: { delete_tracing_project?: boolean }; body: undefined; response: undefined };
  "GET /v2/deployments/{deployment_id}": { path: { deployment_id: string }; query: Record<never, never>; body: undefined; response: Deployment };
  "PATCH /v2/deployments/{deployment_id}": { path: { deployment_id: string }; query: Record<never, never>; body: DeploymentPatch; response: Deployment };
  "GET /v2/deployments/{deployment_id}/auth": { path: { deployment_id: string }; query: Record<never, never>; body: undefined; response: Identity };
  "GET /v2/deployments/{deployment_id}/jwks.json": { path: { deployment_id: string }; query: Record<never, never>; body: undefined; response: PublicKeys };
  "GET /v2/deployments/{deployment_id}/metrics": { path: { deployment_id: string }; query: Record<never, never>; body: undefined; response: DeploymentMetrics };
  "POST /v2/deployments/{deployment_id}/push-token": { path: { deployment_id: string }; query: Record<never, never>; body: PushTokenRequest; response: undefined };
  "GET /v2/deployments/{deployment_id}/revisions": { path: { deployment_id: string }; query: { limit?: number; offset?: number; status?: (RevisionStatus)[]; remote_reconciled?: boolean }; body: undefined; response: RevisionList };
  "POST /v2/deployments/{deployment_id}/revisions": { path: { deployment_id: string }; query: Record<never, never>; body: DeploymentPatch; response: Revision };
  "GET /v2/deployments/{deployment_id}/revisions/{revision_id}": { path: { deployment_id: string; revision_id: string }; query: Record<never, never>; body: undefined; response: Revision };
  "GET /v2/deployments/{deployment_id}/revisions/{revision_id}/history": { path: { deployment_id: string; revision_id: string }; query: Record<never, never>; body: undefined; response: RevisionHistory };
  "POST /v2/deployments/{deployment_id}/revisions/{revision_id}/interrupt": { path: { deployment_id: string; revision_id: string }; query: Record<never, never>; body: undefined; response: Revision };
  "GET /v2/deployments/{deployment_id}/revisions/{revision_id}/logs": { path: { deployment_id: string; revision_id: string }; query: { order?: "asc" | "desc"; limit?: number; offset?: string; level?: string; query?: string; start_time?: string; end_time?: string; run_id?: string; type: "build" | "deploy" }; body: undefined; response: LogPage };
  "POST /v2/deployments/{deployment_id}/revisions/{revision_id}/redeploy": { path: { deployment_id: string; revision_id: string }; query: Record<never, never>; body: undefined; response: Deployment };
  "GET /v2/deployments/{deployment_id}/scale": { path: { deployment_id: string }; query: Record<never, never>; body: undefined; response: Scale };
  "PUT /v2/deployments/{deployment_id}/scale": { path: { deployment_id: string }; query: Record<never, never>; body: Scale; response: Scale };
  "POST /v2/deployments/{deployment_id}/service-key/rotate": { path: { deployment_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "POST /v2/deployments/{deployment_id}/token": { path: { deployment_id: string }; query: Record<never, never>; body: undefined; response: LoggedIn };
  "POST /v2/deployments/{deployment_id}/upload-url": { path: { deployment_id: string }; query: Record<never, never>; body: UploadRequest; response: UploadAddress };
  "GET /v2/listeners": { path: Record<never, never>; query: { limit?: number; offset?: number }; body: undefined; response: ListenerList };
  "POST /v2/listeners": { path: Record<never, never>; query: Record<never, never>; body: ListenerCreate; response: Listener };
  "DELETE /v2/listeners/{listener_id}": { path: { listener_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "GET /v2/listeners/{listener_id}": { path: { listener_id: string }; query: Record<never, never>; body: undefined; response: Listener };
  "PATCH /v2/listeners/{listener_id}": { path: { listener_id: string }; query: Record<never, never>; body: ListenerPatch; response: Listener };
  "POST /v2/public/{share_token}/runs/query": { path: { share_token: string }; query: Record<never, never>; body: SharedSelection; response: RunItems };
  "POST /v2/runs/query": { path: Record<never, never>; query: Record<never, never>; body: RunsQuery; response: RunItems };
  "GET /v2/runs/{run_id}": { path: { run_id: string }; query: { project_id?: string; selects?: (string)[]; start_time?: string }; body: undefined; response: Record<string, unknown> };
  "POST /v2/threads/query": { path: Record<never, never>; query: Record<never, never>; body: ThreadsQuery; response: TracedThreads };
  "GET /v2/traces/{trace_id}/runs": { path: { trace_id: string }; query: { project_id: string; filter?: string; min_start_time?: string; max_start_time?: string; selects?: (string)[] }; body: undefined; response: TraceRuns };
  "PUT /v2/uploads/{archive_id}": { path: { archive_id: string }; query: { token?: string }; body: undefined; response: undefined };
  "GET /workspaces": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (Workspace)[] };
  "POST /workspaces": { path: Record<never, never>; query: Record<never, never>; body: WorkspaceRequest; response: Workspace };
  "GET /workspaces/current/audit-log": { path: Record<never, never>; query: { actor?: string; action?: string; object?: string; outcome?: "failed" | "ok" | "refused"; start_time?: string; end_time?: string; workspace_id?: string; limit?: number; cursor?: number }; body: undefined; response: AuditPage };
  "GET /workspaces/current/audit-log/export": { path: Record<never, never>; query: { actor?: string; action?: string; object?: string; outcome?: "failed" | "ok" | "refused"; start_time?: string; end_time?: string; workspace_id?: string; format?: "csv" | "jsonl" }; body: undefined; response: AuditEntry };
  "GET /workspaces/current/members": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: (Member)[] };
  "POST /workspaces/current/members": { path: Record<never, never>; query: Record<never, never>; body: WorkspaceMemberRequest; response: Member };
  "DELETE /workspaces/current/members/{user_id}": { path: { user_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "PATCH /workspaces/current/members/{user_id}": { path: { user_id: string }; query: Record<never, never>; body: RoleChange; response: Member };
  "GET /workspaces/current/usage_limits": { path: Record<never, never>; query: Record<never, never>; body: undefined; response: UsageState };
  "DELETE /workspaces/{workspace_id}": { path: { workspace_id: string }; query: Record<never, never>; body: undefined; response: undefined };
  "PATCH /workspaces/{workspace_id}": { path: { workspace_id: string }; query: Record<never, never>; body: WorkspacePatch; response: Workspace };
}
