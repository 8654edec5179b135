-- The schema of the platform after the last migration before the baselines, as pg_dump writes it. Functions in
-- PL/pgSQL that no table uses have no bodies: adoption drops them.
CREATE EXTENSION IF NOT EXISTS pg_trgm WITH SCHEMA public;
CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public;
CREATE FUNCTION public.amount_of(reported jsonb, key text) RETURNS numeric
    LANGUAGE sql IMMUTABLE
    AS $$
    select case when jsonb_typeof(reported -> key) = 'number'
                then least(greatest((reported ->> key)::numeric, 0), 1e15) end
$$;
CREATE FUNCTION public.bucket_of(begin timestamp with time zone, stride interval, origin timestamp with time zone) RETURNS integer
    LANGUAGE sql IMMUTABLE
    AS $$
    select (date_part('epoch', begin - origin) / date_part('epoch', stride))::int
$$;
CREATE FUNCTION public.count_traces(workspace uuid, key uuid, caller uuid, default_tier text, run_ids uuid[], trace_ids uuid[], project_ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    AS $$begin end $$;
CREATE FUNCTION public.extends_trace(body text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    select position('"extend_trace_retention"' in body) = 0
        or readable_json(body) ->> 'extend_trace_retention' is distinct from 'false'
$$;
CREATE FUNCTION public.falls(actual timestamp with time zone, op text, wanted timestamp with time zone[]) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    select case op
        when 'eq' then actual = wanted[1]
        when 'neq' then actual is distinct from wanted[1]
        when 'gt' then actual > wanted[1]
        when 'gte' then actual >= wanted[1]
        when 'lt' then actual < wanted[1]
        when 'lte' then actual <= wanted[1]
        when 'in' then actual = any(wanted)
        when 'exists' then actual is not null
        else true
    end
$$;
CREATE FUNCTION public.first_token_of(events text) RETURNS timestamp with time zone
    LANGUAGE plpgsql IMMUTABLE
    AS $_$
begin
    if events is null or position('"new_token"' in events) = 0 then
        return null;
    end if;
    return (
        select min((t.at || case when t.at ~ '(Z|[+-][0-9]{2}(:?[0-9]{2})?)$' then '' else 'Z' end)::timestamptz)
        from jsonb_array_elements(readable_json(events)) as event
        cross join lateral (select event ->> 'time' as at) t
        where event ->> 'name' = 'new_token' and t.at ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ]'
    );
exception when others then
    return null;
end
$_$;
CREATE FUNCTION public.groups_of(attribute text, path text, name text, run_type text, tags text[], extra text, session_id uuid) RETURNS SETOF text
    LANGUAGE sql IMMUTABLE
    AS $$
    select case attribute
               when 'name' then name
               when 'run_type' then run_type
               when 'project' then session_id::text
               when 'metadata' then case when position(path in extra) > 0
                                         then readable_json(extra) -> 'metadata' ->> path end
               else ''
           end
    where attribute is distinct from 'tag'
    union all
    select distinct tag from unnest(tags) as tag where attribute = 'tag'
$$;
CREATE FUNCTION public.measured_runs(workspace uuid, projects uuid[], since timestamp with time zone, before timestamp with time zone) RETURNS TABLE(project_id uuid, began timestamp with time zone, is_root boolean, runs bigint, failed bigint, streamed bigint, timed bigint, seconds double precision, prompt_tokens bigint, completion_tokens bigint, total_tokens bigint, prompt_cost numeric, completion_cost numeric, total_cost numeric, last_start timestamp with time zone, places smallint[], counts bigint[])
    LANGUAGE sql STABLE
    AS $$
    select m.project_id, m.start_time, m.is_root, 1::bigint, m.failed, m.streamed, (m.latency is not null)::int::bigint,
           m.latency, m.prompt_tokens, m.completion_tokens, m.total_tokens, m.prompt_cost,
           m.completion_cost, m.total_cost, m.start_time,
           array_remove(
               array[
                   place_of(0, m.latency), place_of(1, m.first_token), place_of(2, m.prompt_tokens),
                   place_of(3, m.completion_tokens), place_of(4, m.total_tokens), place_of(5, m.total_cost::float8)
               ],
               null
           ),
           '{}'::bigint[]
    from (
        -- `offset 0` has what each run reports read once, not once for each figure.
        select r.session_id as project_id, r.start_time, r.is_root, (r.error is not null)::int::bigint as failed,
               (r.first_token_time is not null)::int::bigint as streamed, r.latency,
               extract(epoch from r.first_token_time - r.start_time)::float8 as first_token,
               r.prompt_tokens, r.completion_tokens, r.total_tokens, r.prompt_cost, r.completion_cost, r.total_cost
        from readable_runs r
        where r.workspace_id = workspace and r.session_id = any(projects)
          and r.start_time >= since and r.start_time < before
        offset 0
    ) m
$$;
CREATE FUNCTION public.own_order(start_time timestamp with time zone, received_at timestamp with time zone, id uuid) RETURNS text
    LANGUAGE sql STABLE
    AS $$ select to_char(coalesce(start_time, received_at) at time zone 'UTC', 'YYYYMMDD"T"HH24MISSUS"Z"') || id $$;
CREATE FUNCTION public.place_of(measure integer, value double precision) RETURNS smallint
    LANGUAGE sql IMMUTABLE
    AS $$
    select (measure * 2000 + case
        when value is null then null
        when value < 1e-9 then 0
        else 1000 + least(floor(ln(value) / ln(1.05)), 990)
    end)::smallint
$$;
CREATE FUNCTION public.readable_json(value text) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE STRICT
    AS $$
begin
    return replace(value, '\u0000', '\ufffd')::jsonb;
exception when others then
    return null;
end
$$;
CREATE FUNCTION public.received_around_days(workspaces uuid[], starts timestamp with time zone, first_hour timestamp with time zone, first_day timestamp with time zone, last_day timestamp with time zone, last_hour timestamp with time zone, ends timestamp with time zone) RETURNS TABLE(received_at timestamp with time zone, workspace_id uuid, project_id uuid, user_id uuid, api_key_id uuid, traces integer)
    LANGUAGE sql STABLE
    AS $$
    select t.received_at, t.workspace_id, t.project_id, t.user_id, t.api_key_id, 1
    from traces t
    where t.workspace_id = any(workspaces) and t.received_at >= starts and t.received_at < first_hour
    union all
    select h.hour, h.workspace_id, h.project_id, h.user_id, h.api_key_id, h.traces::int
    from trace_hours h
    where h.workspace_id = any(workspaces) and h.hour >= first_hour and h.hour < first_day
    union all
    select h.hour, h.workspace_id, h.project_id, h.user_id, h.api_key_id, h.traces::int
    from trace_hours h
    where h.workspace_id = any(workspaces) and h.hour >= last_day and h.hour < last_hour
    union all
    select t.received_at, t.workspace_id, t.project_id, t.user_id, t.api_key_id, 1
    from traces t
    where t.workspace_id = any(workspaces) and t.received_at >= last_hour and t.received_at < ends
$$;
CREATE FUNCTION public.record_revision_move() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    insert into revision_moves (revision_id, status, reason, at)
    values (new.id, new.status, new.status_message, clock_timestamp());
    return null;
end
$$;
CREATE FUNCTION public.refuse_deleted_workspace() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    perform from workspaces where id = new.workspace_id and deleted_at is null for key share;
    if not found then
        raise exception 'workspace % is deleted', new.workspace_id using errcode = '40001';
    end if;
    return new;
end
$$;
CREATE FUNCTION public.says(actual text, op text, wanted text[]) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    select case op
        when 'eq' then actual = wanted[1]
        when 'neq' then actual is distinct from wanted[1]
        when 'gt' then actual > wanted[1]
        when 'gte' then actual >= wanted[1]
        when 'lt' then actual < wanted[1]
        when 'lte' then actual <= wanted[1]
        when 'in' then actual = any(wanted)
        when 'search' then position(lower(wanted[1]) in lower(actual)) > 0
        when 'exists' then actual is not null
        else true
    end
$$;
CREATE FUNCTION public.settle(kept anyelement, came anyelement, keeps boolean) RETURNS anyelement
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ select case when keeps then coalesce(kept, came) else coalesce(came, kept) end $$;
CREATE FUNCTION public.touch_day() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    if tg_op <> 'INSERT' and old.project_id is not null then
        insert into touched_days (project_id, day)
        values (old.project_id, date_trunc('day', coalesce(old.start_time, old.received_at), 'UTC'))
        on conflict do nothing;
    end if;
    if tg_op <> 'DELETE' and new.project_id is not null then
        insert into touched_days (project_id, day)
        values (new.project_id, date_trunc('day', coalesce(new.start_time, new.received_at), 'UTC'))
        on conflict do nothing;
    end if;
    return null;
end
$$;
CREATE FUNCTION public.usage_of(extra text, outputs text) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    AS $$
    select coalesce(
        case when position('"usage_metadata"' in extra) > 0
             then readable_json(extra) -> 'metadata' -> 'usage_metadata' end,
        case when position('"usage_metadata"' in outputs) > 0 then readable_json(outputs) -> 'usage_metadata' end
    )
$$;
CREATE FUNCTION public.weighs(actual double precision, op text, wanted double precision[]) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    select case op
        when 'eq' then actual = wanted[1]
        when 'neq' then actual is distinct from wanted[1]
        when 'gt' then actual > wanted[1]
        when 'gte' then actual >= wanted[1]
        when 'lt' then actual < wanted[1]
        when 'lte' then actual <= wanted[1]
        when 'in' then actual = any(wanted)
        when 'exists' then actual is not null
        else true
    end
$$;
CREATE TABLE public.annotation_queues (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    name text NOT NULL,
    description text,
    rubric_instructions text,
    rubric_items jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.api_keys (
    id uuid NOT NULL,
    organization_id uuid NOT NULL,
    workspace_id uuid,
    user_id uuid,
    description text NOT NULL,
    short_key text NOT NULL,
    key_hash bytea NOT NULL,
    permissions text[] NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    last_used_at timestamp with time zone,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    workspaces uuid[],
    read_only boolean DEFAULT false NOT NULL
);
CREATE TABLE public.applied_migrations (
    room text NOT NULL,
    number integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.attachments (
    workspace_id uuid NOT NULL,
    run_id uuid NOT NULL,
    name text NOT NULL,
    content_type text NOT NULL,
    data bytea NOT NULL
);
CREATE TABLE public.branch_polls (
    deployment_id uuid NOT NULL,
    looked_at timestamp with time zone NOT NULL,
    seen_ref text,
    seen_commit text,
    failure text
);
CREATE TABLE public.chart_sections (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    title text NOT NULL,
    description text,
    index integer NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.charts (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    section_id uuid NOT NULL,
    title text NOT NULL,
    description text,
    index integer NOT NULL,
    chart_type text NOT NULL,
    series jsonb NOT NULL,
    common_filters jsonb,
    metadata jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.comparative_experiments (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    dataset_id uuid NOT NULL,
    name text,
    description text,
    extra jsonb,
    experiment_ids uuid[] NOT NULL,
    created_at timestamp with time zone NOT NULL,
    modified_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.counted_days (
    is_the_only boolean DEFAULT true NOT NULL,
    until timestamp with time zone NOT NULL,
    CONSTRAINT counted_days_is_the_only_check CHECK (is_the_only)
);
CREATE TABLE public.counted_hours (
    is_the_only boolean DEFAULT true NOT NULL,
    until timestamp with time zone NOT NULL,
    CONSTRAINT counted_hours_is_the_only_check CHECK (is_the_only)
);
CREATE TABLE public.dataset_tags (
    workspace_id uuid NOT NULL,
    dataset_id uuid NOT NULL,
    tag text NOT NULL,
    as_of timestamp with time zone NOT NULL
);
CREATE TABLE public.dataset_versions (
    workspace_id uuid NOT NULL,
    dataset_id uuid NOT NULL,
    as_of timestamp with time zone NOT NULL
);
CREATE TABLE public.datasets (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    name text NOT NULL,
    description text,
    data_type text NOT NULL,
    extra jsonb,
    inputs_schema json,
    outputs_schema json,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    modified_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.deployment_metrics (
    deployment_id uuid NOT NULL,
    measured_at timestamp with time zone NOT NULL,
    measures jsonb NOT NULL
);
CREATE TABLE public.deployments (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    display_name text,
    source text NOT NULL,
    integration_id uuid,
    repo_url text,
    deployment_type text,
    build_on_push boolean DEFAULT false NOT NULL,
    install_command text,
    build_command text,
    custom_url text,
    status text NOT NULL,
    status_message text,
    latest_revision_id uuid,
    active_revision_id uuid,
    tracing_project_id uuid NOT NULL,
    delete_tracing_project boolean DEFAULT false NOT NULL,
    service_key_id uuid NOT NULL,
    service_key_sealed bytea NOT NULL,
    held_by uuid,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    listener_id uuid,
    k8s_namespace text,
    asked_url text,
    secrets_sealed bytea,
    min_scale integer,
    max_scale integer,
    queue_min_scale integer,
    queue_max_scale integer
);
CREATE TABLE public.desired_generations (
    workspace_id uuid NOT NULL,
    generation bigint NOT NULL
);
CREATE TABLE public.example_attachments (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    dataset_id uuid NOT NULL,
    mime_type text NOT NULL,
    data bytea NOT NULL
);
CREATE TABLE public.examples (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    since timestamp with time zone NOT NULL,
    until timestamp with time zone DEFAULT 'infinity'::timestamp with time zone NOT NULL,
    dataset_id uuid NOT NULL,
    created_at timestamp with time zone NOT NULL,
    "position" integer NOT NULL,
    inputs json NOT NULL,
    outputs json,
    metadata jsonb NOT NULL,
    source_run_id uuid,
    attachments jsonb NOT NULL
);
CREATE TABLE public.feedback (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    run_id uuid,
    trace_id uuid,
    key text NOT NULL,
    body text NOT NULL,
    modified_at timestamp with time zone NOT NULL
);
CREATE TABLE public.feedback_configs (
    workspace_id uuid NOT NULL,
    feedback_key text NOT NULL,
    feedback_config jsonb NOT NULL,
    is_lower_score_better boolean NOT NULL,
    modified_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.feedback_tokens (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    run_id uuid NOT NULL,
    key text NOT NULL,
    config jsonb,
    feedback_id uuid NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.figure_days (
    project_id uuid NOT NULL,
    day timestamp with time zone NOT NULL,
    is_root boolean NOT NULL,
    runs bigint NOT NULL,
    failed bigint NOT NULL,
    streamed bigint NOT NULL,
    timed bigint NOT NULL,
    seconds double precision,
    prompt_tokens numeric NOT NULL,
    completion_tokens numeric NOT NULL,
    total_tokens numeric NOT NULL,
    prompt_cost numeric,
    completion_cost numeric,
    total_cost numeric,
    last_start timestamp with time zone NOT NULL,
    places smallint[] NOT NULL,
    counts bigint[] NOT NULL
);
CREATE TABLE public.figured_days (
    is_the_only boolean DEFAULT true NOT NULL,
    until timestamp with time zone NOT NULL,
    CONSTRAINT figured_days_is_the_only_check CHECK (is_the_only)
);
CREATE TABLE public.integrations (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    installation_id bigint NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    base_url text NOT NULL,
    token_sealed bytea,
    webhook_secret_sealed bytea,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE public.integrations ALTER COLUMN installation_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.integrations_installation_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.listeners (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    compute_type text NOT NULL,
    compute_id text NOT NULL,
    version text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    last_seen_at timestamp with time zone,
    compute_config jsonb DEFAULT '{}'::jsonb NOT NULL
);
CREATE TABLE public.logins (
    id uuid NOT NULL,
    user_id uuid NOT NULL,
    token_hash bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    expires_at timestamp with time zone NOT NULL
);
CREATE TABLE public.organization_members (
    organization_id uuid NOT NULL,
    user_id uuid NOT NULL,
    role text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.organizations (
    id uuid NOT NULL,
    display_name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.project_days (
    workspace_id uuid NOT NULL,
    day timestamp with time zone NOT NULL,
    project_id uuid NOT NULL,
    traces integer NOT NULL
);
CREATE TABLE public.projects (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    deleted_at timestamp with time zone,
    description text,
    extra jsonb,
    start_time timestamp with time zone,
    end_time timestamp with time zone,
    reference_dataset_id uuid,
    default_dataset_id uuid,
    trace_tier text
);
CREATE TABLE public.prompt_commits (
    id uuid NOT NULL,
    repo_id uuid NOT NULL,
    number integer NOT NULL,
    parent_id uuid,
    commit_hash text NOT NULL,
    manifest_hash text NOT NULL,
    manifest json NOT NULL,
    description text,
    num_downloads bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.prompt_likes (
    repo_id uuid NOT NULL,
    liked_by uuid NOT NULL
);
CREATE TABLE public.prompt_repos (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    handle text NOT NULL,
    description text NOT NULL,
    readme text NOT NULL,
    tags text[] NOT NULL,
    is_public boolean NOT NULL,
    is_archived boolean DEFAULT false NOT NULL,
    num_downloads bigint DEFAULT 0 NOT NULL,
    num_views bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.prompt_tags (
    id uuid NOT NULL,
    repo_id uuid NOT NULL,
    name text NOT NULL,
    commit_id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.push_deliveries (
    integration_id uuid NOT NULL,
    delivery_id text NOT NULL,
    received_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.queued_runs (
    workspace_id uuid NOT NULL,
    queue_id uuid NOT NULL,
    run_id uuid NOT NULL,
    "position" bigint NOT NULL,
    added_at timestamp with time zone DEFAULT now() NOT NULL,
    last_reviewed_time timestamp with time zone
);
ALTER TABLE public.queued_runs ALTER COLUMN "position" ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.queued_runs_position_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE UNLOGGED TABLE public.rate_windows (
    budget bytea NOT NULL,
    ends_at timestamp with time zone NOT NULL,
    used integer NOT NULL
);
CREATE TABLE public.runs (
    workspace_id uuid NOT NULL,
    id uuid NOT NULL,
    trace_id uuid,
    parent_run_id uuid,
    dotted_order text,
    project_id uuid,
    reference_example_id uuid,
    name text,
    run_type text,
    start_time timestamp with time zone,
    end_time timestamp with time zone,
    status text GENERATED ALWAYS AS (
CASE
    WHEN (error IS NOT NULL) THEN 'error'::text
    WHEN (end_time IS NOT NULL) THEN 'success'::text
    ELSE 'pending'::text
END) STORED NOT NULL,
    tags text[],
    error text,
    inputs text,
    outputs text,
    extra text,
    events text,
    serialized text,
    patched integer NOT NULL,
    patch_order double precision NOT NULL,
    is_awaited boolean NOT NULL,
    received_at timestamp with time zone DEFAULT now() NOT NULL,
    usage jsonb GENERATED ALWAYS AS (public.usage_of(extra, outputs)) STORED,
    first_token_time timestamp with time zone GENERATED ALWAYS AS (public.first_token_of(events)) STORED
)
WITH (fillfactor='60');
CREATE VIEW public.readable_feedback AS
 SELECT f.workspace_id,
    f.id,
    f.run_id,
    COALESCE(f.trace_id, r.trace_id) AS trace_id,
    f.key,
    f.body,
    f.modified_at,
    COALESCE((r.project_id)::text, (d.doc ->> 'session_id'::text)) AS session_id,
    ((d.doc -> 'feedback_source'::text) ->> 'type'::text) AS source,
    ((d.doc -> 'feedback_source'::text) ->> 'user_id'::text) AS user_id,
        CASE jsonb_typeof((d.doc -> 'score'::text))
            WHEN 'number'::text THEN (LEAST(GREATEST(((d.doc ->> 'score'::text))::numeric, '-1000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000'::numeric), '1000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000'::numeric))::double precision
            WHEN 'boolean'::text THEN ((((d.doc ->> 'score'::text))::boolean)::integer)::double precision
            ELSE NULL::double precision
        END AS score,
        CASE
            WHEN (jsonb_typeof((d.doc -> 'value'::text)) = 'string'::text) THEN (d.doc ->> 'value'::text)
            ELSE NULL::text
        END AS value,
    (COALESCE((d.doc ->> 'comment'::text), ''::text) <> ''::text) AS has_comment
   FROM ((public.feedback f
     LEFT JOIN public.runs r ON (((r.workspace_id = f.workspace_id) AND (r.id = f.run_id))))
     CROSS JOIN LATERAL ( SELECT public.readable_json(f.body) AS doc) d);
CREATE VIEW public.readable_runs AS
 SELECT workspace_id,
    id,
    name,
    COALESCE(run_type, 'chain'::text) AS run_type,
    status,
    COALESCE(trace_id, id) AS trace_id,
    COALESCE(dotted_order, public.own_order(start_time, received_at, id)) AS dotted_order,
    parent_run_id,
    (parent_run_id IS NULL) AS is_root,
    project_id AS session_id,
    reference_example_id,
    COALESCE(start_time, received_at) AS start_time,
    end_time,
    (EXTRACT(epoch FROM (end_time - COALESCE(start_time, received_at))))::double precision AS latency,
    COALESCE(tags, '{}'::text[]) AS tags,
    error,
    inputs,
    outputs,
    extra,
    events,
    serialized,
    first_token_time,
    (COALESCE(trunc(public.amount_of(usage, 'input_tokens'::text)), (0)::numeric))::bigint AS prompt_tokens,
    (COALESCE(trunc(public.amount_of(usage, 'output_tokens'::text)), (0)::numeric))::bigint AS completion_tokens,
    (COALESCE(trunc(public.amount_of(usage, 'total_tokens'::text)), (trunc(public.amount_of(usage, 'input_tokens'::text)) + trunc(public.amount_of(usage, 'output_tokens'::text))), (0)::numeric))::bigint AS total_tokens,
    public.amount_of(usage, 'input_cost'::text) AS prompt_cost,
    public.amount_of(usage, 'output_cost'::text) AS completion_cost,
    public.amount_of(usage, 'total_cost'::text) AS total_cost,
    usage
   FROM public.runs r
  WHERE ((name IS NOT NULL) AND (project_id IS NOT NULL));
CREATE TABLE public.revision_logs (
    id bigint NOT NULL,
    deployment_id uuid NOT NULL,
    revision_id uuid NOT NULL,
    type text NOT NULL,
    at timestamp with time zone NOT NULL,
    level text NOT NULL,
    message text NOT NULL
);
ALTER TABLE public.revision_logs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.revision_logs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.revision_moves (
    id bigint NOT NULL,
    revision_id uuid NOT NULL,
    status text NOT NULL,
    reason text,
    at timestamp with time zone NOT NULL
);
ALTER TABLE public.revision_moves ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.revision_moves_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.revisions (
    id uuid NOT NULL,
    deployment_id uuid NOT NULL,
    number integer NOT NULL,
    status text NOT NULL,
    status_message text,
    source text NOT NULL,
    repo_ref text,
    repo_commit_sha text,
    graph_config_path text,
    secrets_sealed bytea NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    image_uri text,
    image_version text,
    source_tarball_path text,
    install_command text,
    build_command text,
    resource_spec jsonb,
    secret_references jsonb,
    built_from uuid,
    is_built boolean DEFAULT false NOT NULL
);
CREATE TABLE public.shared_datasets (
    share_token uuid NOT NULL,
    workspace_id uuid NOT NULL,
    dataset_id uuid NOT NULL
);
CREATE TABLE public.shared_runs (
    share_token uuid NOT NULL,
    workspace_id uuid NOT NULL,
    run_id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.source_archives (
    id uuid NOT NULL,
    deployment_id uuid NOT NULL,
    token_hash bytea NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    uploaded_at timestamp with time zone,
    size_bytes bigint,
    used_at timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.touched_days (
    project_id uuid NOT NULL,
    day timestamp with time zone NOT NULL,
    written_by xid8 DEFAULT pg_current_xact_id() NOT NULL,
    written_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.trace_days (
    workspace_id uuid NOT NULL,
    day timestamp with time zone NOT NULL,
    project_id uuid NOT NULL,
    user_id uuid,
    api_key_id uuid NOT NULL,
    traces bigint NOT NULL
);
CREATE TABLE public.trace_hours (
    workspace_id uuid NOT NULL,
    hour timestamp with time zone NOT NULL,
    project_id uuid NOT NULL,
    user_id uuid,
    api_key_id uuid NOT NULL,
    traces bigint NOT NULL
);
CREATE TABLE public.traces (
    workspace_id uuid NOT NULL,
    trace_id uuid NOT NULL,
    project_id uuid NOT NULL,
    api_key_id uuid NOT NULL,
    user_id uuid,
    received_at timestamp with time zone DEFAULT now() NOT NULL,
    tier text DEFAULT 'longlived'::text NOT NULL,
    extended_at timestamp with time zone,
    expired_at timestamp with time zone
);
CREATE TABLE public.usage_limits (
    id uuid NOT NULL,
    workspace_id uuid NOT NULL,
    limit_type text NOT NULL,
    limit_value bigint NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.users (
    id uuid NOT NULL,
    organization_id uuid NOT NULL,
    email text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    full_name text,
    password bytea,
    removed_at timestamp with time zone
);
CREATE TABLE public.workspace_members (
    workspace_id uuid NOT NULL,
    user_id uuid NOT NULL,
    role text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE public.workspaces (
    id uuid NOT NULL,
    organization_id uuid NOT NULL,
    display_name text NOT NULL,
    tenant_handle text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    deleted_at timestamp with time zone,
    emptied_at timestamp with time zone
);
ALTER TABLE ONLY public.annotation_queues
    ADD CONSTRAINT annotation_queues_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT api_keys_key_hash_key UNIQUE (key_hash);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.applied_migrations
    ADD CONSTRAINT applied_migrations_pkey PRIMARY KEY (room, number);
ALTER TABLE ONLY public.attachments
    ADD CONSTRAINT attachments_pkey PRIMARY KEY (workspace_id, run_id, name);
ALTER TABLE ONLY public.branch_polls
    ADD CONSTRAINT branch_polls_pkey PRIMARY KEY (deployment_id);
ALTER TABLE ONLY public.chart_sections
    ADD CONSTRAINT chart_sections_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.charts
    ADD CONSTRAINT charts_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.comparative_experiments
    ADD CONSTRAINT comparative_experiments_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE ONLY public.counted_days
    ADD CONSTRAINT counted_days_pkey PRIMARY KEY (is_the_only);
ALTER TABLE ONLY public.counted_hours
    ADD CONSTRAINT counted_hours_pkey PRIMARY KEY (is_the_only);
ALTER TABLE ONLY public.dataset_tags
    ADD CONSTRAINT dataset_tags_pkey PRIMARY KEY (workspace_id, dataset_id, tag);
ALTER TABLE ONLY public.dataset_versions
    ADD CONSTRAINT dataset_versions_pkey PRIMARY KEY (workspace_id, dataset_id, as_of);
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT datasets_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE ONLY public.deployment_metrics
    ADD CONSTRAINT deployment_metrics_pkey PRIMARY KEY (deployment_id);
ALTER TABLE ONLY public.deployments
    ADD CONSTRAINT deployments_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.deployments
    ADD CONSTRAINT deployments_workspace_id_name_key UNIQUE (workspace_id, name);
ALTER TABLE ONLY public.desired_generations
    ADD CONSTRAINT desired_generations_pkey PRIMARY KEY (workspace_id);
ALTER TABLE ONLY public.example_attachments
    ADD CONSTRAINT example_attachments_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.examples
    ADD CONSTRAINT examples_pkey PRIMARY KEY (workspace_id, id, since);
ALTER TABLE ONLY public.feedback_configs
    ADD CONSTRAINT feedback_configs_pkey PRIMARY KEY (workspace_id, feedback_key);
ALTER TABLE ONLY public.feedback
    ADD CONSTRAINT feedback_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE ONLY public.feedback_tokens
    ADD CONSTRAINT feedback_tokens_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.figure_days
    ADD CONSTRAINT figure_days_pkey PRIMARY KEY (project_id, day, is_root);
ALTER TABLE ONLY public.figured_days
    ADD CONSTRAINT figured_days_pkey PRIMARY KEY (is_the_only);
ALTER TABLE ONLY public.integrations
    ADD CONSTRAINT integrations_installation_id_key UNIQUE (installation_id);
ALTER TABLE ONLY public.integrations
    ADD CONSTRAINT integrations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.integrations
    ADD CONSTRAINT integrations_workspace_id_name_key UNIQUE (workspace_id, name);
ALTER TABLE ONLY public.listeners
    ADD CONSTRAINT listeners_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.listeners
    ADD CONSTRAINT listeners_workspace_id_compute_id_key UNIQUE (workspace_id, compute_id);
ALTER TABLE ONLY public.logins
    ADD CONSTRAINT logins_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.logins
    ADD CONSTRAINT logins_token_hash_key UNIQUE (token_hash);
ALTER TABLE ONLY public.organization_members
    ADD CONSTRAINT organization_members_pkey PRIMARY KEY (organization_id, user_id);
ALTER TABLE ONLY public.organizations
    ADD CONSTRAINT organizations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.projects
    ADD CONSTRAINT projects_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.prompt_commits
    ADD CONSTRAINT prompt_commits_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.prompt_commits
    ADD CONSTRAINT prompt_commits_repo_id_commit_hash_key UNIQUE (repo_id, commit_hash);
ALTER TABLE ONLY public.prompt_commits
    ADD CONSTRAINT prompt_commits_repo_id_number_key UNIQUE (repo_id, number);
ALTER TABLE ONLY public.prompt_likes
    ADD CONSTRAINT prompt_likes_pkey PRIMARY KEY (repo_id, liked_by);
ALTER TABLE ONLY public.prompt_repos
    ADD CONSTRAINT prompt_repos_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.prompt_repos
    ADD CONSTRAINT prompt_repos_workspace_id_handle_key UNIQUE (workspace_id, handle);
ALTER TABLE ONLY public.prompt_tags
    ADD CONSTRAINT prompt_tags_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.prompt_tags
    ADD CONSTRAINT prompt_tags_repo_id_name_key UNIQUE (repo_id, name);
ALTER TABLE ONLY public.push_deliveries
    ADD CONSTRAINT push_deliveries_pkey PRIMARY KEY (integration_id, delivery_id);
ALTER TABLE ONLY public.queued_runs
    ADD CONSTRAINT queued_runs_pkey PRIMARY KEY (workspace_id, queue_id, run_id);
ALTER TABLE ONLY public.rate_windows
    ADD CONSTRAINT rate_windows_pkey PRIMARY KEY (budget);
ALTER TABLE ONLY public.revision_logs
    ADD CONSTRAINT revision_logs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.revision_moves
    ADD CONSTRAINT revision_moves_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.revisions
    ADD CONSTRAINT revisions_deployment_id_number_key UNIQUE (deployment_id, number);
ALTER TABLE ONLY public.revisions
    ADD CONSTRAINT revisions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (workspace_id, id);
ALTER TABLE ONLY public.shared_datasets
    ADD CONSTRAINT shared_datasets_pkey PRIMARY KEY (share_token);
ALTER TABLE ONLY public.shared_datasets
    ADD CONSTRAINT shared_datasets_workspace_id_dataset_id_key UNIQUE (workspace_id, dataset_id);
ALTER TABLE ONLY public.shared_runs
    ADD CONSTRAINT shared_runs_pkey PRIMARY KEY (share_token);
ALTER TABLE ONLY public.shared_runs
    ADD CONSTRAINT shared_runs_workspace_id_run_id_key UNIQUE (workspace_id, run_id);
ALTER TABLE ONLY public.source_archives
    ADD CONSTRAINT source_archives_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.touched_days
    ADD CONSTRAINT touched_days_pkey PRIMARY KEY (project_id, day, written_by);
ALTER TABLE ONLY public.traces
    ADD CONSTRAINT traces_pkey PRIMARY KEY (workspace_id, trace_id);
ALTER TABLE ONLY public.usage_limits
    ADD CONSTRAINT usage_limits_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.usage_limits
    ADD CONSTRAINT usage_limits_workspace_id_limit_type_key UNIQUE (workspace_id, limit_type);
ALTER TABLE ONLY public.users
    ADD CONSTRAINT users_email_key UNIQUE (email);
ALTER TABLE ONLY public.users
    ADD CONSTRAINT users_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.workspace_members
    ADD CONSTRAINT workspace_members_pkey PRIMARY KEY (workspace_id, user_id);
ALTER TABLE ONLY public.workspaces
    ADD CONSTRAINT workspaces_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.workspaces
    ADD CONSTRAINT workspaces_tenant_handle_key UNIQUE (tenant_handle);
CREATE INDEX annotation_queues_newest ON public.annotation_queues USING btree (workspace_id, created_at DESC, id);
CREATE INDEX api_keys_of_organization ON public.api_keys USING btree (organization_id, created_at) WHERE (workspace_id IS NULL);
CREATE INDEX api_keys_of_user ON public.api_keys USING btree (user_id) WHERE (user_id IS NOT NULL);
CREATE INDEX api_keys_of_workspace ON public.api_keys USING btree (workspace_id, created_at);
CREATE INDEX chart_sections_in_order ON public.chart_sections USING btree (workspace_id, index, id);
CREATE INDEX charts_of_section ON public.charts USING btree (section_id, index, id);
CREATE UNIQUE INDEX datasets_by_name ON public.datasets USING btree (workspace_id, name);
CREATE INDEX deployments_held_by ON public.deployments USING btree (held_by);
CREATE INDEX deployments_newest ON public.deployments USING btree (workspace_id, created_at DESC, id DESC);
CREATE INDEX deployments_of_integration ON public.deployments USING btree (integration_id) WHERE (integration_id IS NOT NULL);
CREATE INDEX example_attachments_of_dataset ON public.example_attachments USING btree (workspace_id, dataset_id);
CREATE UNIQUE INDEX examples_at_present ON public.examples USING btree (workspace_id, id) WHERE (until = 'infinity'::timestamp with time zone);
CREATE INDEX examples_in_order ON public.examples USING btree (workspace_id, dataset_id, since DESC, "position", id);
CREATE INDEX feedback_by_time ON public.feedback USING btree (workspace_id, modified_at);
CREATE INDEX feedback_of_run ON public.feedback USING btree (workspace_id, run_id);
CREATE INDEX feedback_tokens_of_run ON public.feedback_tokens USING btree (workspace_id, run_id, created_at);
CREATE INDEX logins_by_end ON public.logins USING btree (expires_at);
CREATE INDEX logins_of_user ON public.logins USING btree (user_id);
CREATE INDEX project_days_by_day ON public.project_days USING btree (workspace_id, day) INCLUDE (project_id, traces);
CREATE UNIQUE INDEX projects_by_name ON public.projects USING btree (workspace_id, name) WHERE (deleted_at IS NULL);
CREATE INDEX prompt_commits_of_parent ON public.prompt_commits USING btree (parent_id);
CREATE INDEX prompt_tags_of_commit ON public.prompt_tags USING btree (commit_id);
CREATE INDEX push_deliveries_oldest ON public.push_deliveries USING btree (received_at);
CREATE INDEX queued_runs_in_order ON public.queued_runs USING btree (workspace_id, queue_id, "position");
CREATE INDEX rate_windows_ended ON public.rate_windows USING btree (ends_at);
CREATE INDEX revision_logs_of_deployment ON public.revision_logs USING btree (deployment_id, type, id);
CREATE INDEX revision_logs_of_revision ON public.revision_logs USING btree (revision_id, type, id);
CREATE INDEX revision_moves_of_revision ON public.revision_moves USING btree (revision_id, id);
CREATE UNIQUE INDEX revisions_at_work ON public.revisions USING btree (deployment_id) WHERE (status = ANY (ARRAY['CREATING'::text, 'AWAITING_BUILD'::text, 'BUILDING'::text, 'AWAITING_DEPLOY'::text, 'DEPLOYING'::text]));
CREATE UNIQUE INDEX revisions_waiting ON public.revisions USING btree (deployment_id) WHERE (status = 'QUEUED'::text);
CREATE INDEX runs_by_time ON public.runs USING btree (workspace_id, project_id, COALESCE(start_time, received_at), id);
CREATE INDEX runs_of_parent ON public.runs USING btree (workspace_id, parent_run_id) WHERE (parent_run_id IS NOT NULL);
CREATE INDEX runs_of_trace ON public.runs USING btree (workspace_id, COALESCE(trace_id, id));
CREATE INDEX runs_of_workspace ON public.runs USING btree (workspace_id, COALESCE(start_time, received_at), id);
CREATE INDEX runs_without_place ON public.runs USING btree (parent_run_id, workspace_id) WHERE (dotted_order IS NULL);
CREATE INDEX source_archives_of_deployment ON public.source_archives USING btree (deployment_id, created_at);
CREATE INDEX source_archives_unused ON public.source_archives USING btree (created_at) WHERE (used_at IS NULL);
CREATE INDEX trace_days_by_day ON public.trace_days USING btree (workspace_id, day) INCLUDE (project_id, user_id, api_key_id, traces);
CREATE INDEX trace_hours_by_hour ON public.trace_hours USING btree (workspace_id, hour) INCLUDE (project_id, user_id, api_key_id, traces);
CREATE INDEX traces_by_extension ON public.traces USING btree (workspace_id, extended_at) WHERE (extended_at IS NOT NULL);
CREATE INDEX traces_by_receipt ON public.traces USING btree (workspace_id, received_at) INCLUDE (project_id, user_id, api_key_id);
CREATE INDEX traces_to_expire ON public.traces USING btree (tier, received_at) WHERE (expired_at IS NULL);
CREATE INDEX workspace_members_of_user ON public.workspace_members USING btree (user_id);
CREATE INDEX workspaces_to_empty ON public.workspaces USING btree (deleted_at) WHERE ((deleted_at IS NOT NULL) AND (emptied_at IS NULL));
CREATE STATISTICS public.runs_of_projects (dependencies) ON workspace_id, project_id FROM public.runs;
CREATE TRIGGER deployments_of_workspaces BEFORE INSERT ON public.deployments FOR EACH ROW EXECUTE FUNCTION public.refuse_deleted_workspace();
CREATE TRIGGER revision_created AFTER INSERT ON public.revisions FOR EACH ROW EXECUTE FUNCTION public.record_revision_move();
CREATE TRIGGER revision_moved AFTER UPDATE OF status ON public.revisions FOR EACH ROW WHEN ((old.status IS DISTINCT FROM new.status)) EXECUTE FUNCTION public.record_revision_move();
CREATE TRIGGER touch_day_of_changed AFTER UPDATE ON public.runs FOR EACH ROW WHEN ((LEAST(COALESCE(old.start_time, old.received_at), COALESCE(new.start_time, new.received_at)) < (now() - '01:00:00'::interval))) EXECUTE FUNCTION public.touch_day();
CREATE TRIGGER touch_day_of_deleted AFTER DELETE ON public.runs FOR EACH ROW WHEN ((COALESCE(old.start_time, old.received_at) < (now() - '01:00:00'::interval))) EXECUTE FUNCTION public.touch_day();
CREATE TRIGGER touch_day_of_new AFTER INSERT ON public.runs FOR EACH ROW WHEN ((COALESCE(new.start_time, new.received_at) < (now() - '01:00:00'::interval))) EXECUTE FUNCTION public.touch_day();
ALTER TABLE ONLY public.annotation_queues
    ADD CONSTRAINT annotation_queues_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT api_keys_organization_id_fkey FOREIGN KEY (organization_id) REFERENCES public.organizations(id);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT api_keys_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id);
ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT api_keys_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.branch_polls
    ADD CONSTRAINT branch_polls_deployment_id_fkey FOREIGN KEY (deployment_id) REFERENCES public.deployments(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.chart_sections
    ADD CONSTRAINT chart_sections_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.charts
    ADD CONSTRAINT charts_section_id_fkey FOREIGN KEY (section_id) REFERENCES public.chart_sections(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.charts
    ADD CONSTRAINT charts_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.comparative_experiments
    ADD CONSTRAINT comparative_experiments_workspace_id_dataset_id_fkey FOREIGN KEY (workspace_id, dataset_id) REFERENCES public.datasets(workspace_id, id) ON DELETE CASCADE;
ALTER TABLE ONLY public.dataset_tags
    ADD CONSTRAINT dataset_tags_workspace_id_dataset_id_as_of_fkey FOREIGN KEY (workspace_id, dataset_id, as_of) REFERENCES public.dataset_versions(workspace_id, dataset_id, as_of) ON DELETE CASCADE;
ALTER TABLE ONLY public.dataset_versions
    ADD CONSTRAINT dataset_versions_workspace_id_dataset_id_fkey FOREIGN KEY (workspace_id, dataset_id) REFERENCES public.datasets(workspace_id, id) ON DELETE CASCADE;
ALTER TABLE ONLY public.datasets
    ADD CONSTRAINT datasets_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.deployment_metrics
    ADD CONSTRAINT deployment_metrics_deployment_id_fkey FOREIGN KEY (deployment_id) REFERENCES public.deployments(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.deployments
    ADD CONSTRAINT deployments_held_by_fkey FOREIGN KEY (held_by) REFERENCES public.listeners(id);
ALTER TABLE ONLY public.deployments
    ADD CONSTRAINT deployments_listener_id_fkey FOREIGN KEY (listener_id) REFERENCES public.listeners(id);
ALTER TABLE ONLY public.deployments
    ADD CONSTRAINT deployments_service_key_id_fkey FOREIGN KEY (service_key_id) REFERENCES public.api_keys(id);
ALTER TABLE ONLY public.deployments
    ADD CONSTRAINT deployments_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.desired_generations
    ADD CONSTRAINT desired_generations_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.example_attachments
    ADD CONSTRAINT example_attachments_workspace_id_dataset_id_fkey FOREIGN KEY (workspace_id, dataset_id) REFERENCES public.datasets(workspace_id, id) ON DELETE CASCADE;
ALTER TABLE ONLY public.examples
    ADD CONSTRAINT examples_workspace_id_dataset_id_fkey FOREIGN KEY (workspace_id, dataset_id) REFERENCES public.datasets(workspace_id, id) ON DELETE CASCADE;
ALTER TABLE ONLY public.feedback_configs
    ADD CONSTRAINT feedback_configs_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.feedback_tokens
    ADD CONSTRAINT feedback_tokens_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.integrations
    ADD CONSTRAINT integrations_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.listeners
    ADD CONSTRAINT listeners_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.logins
    ADD CONSTRAINT logins_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id);
ALTER TABLE ONLY public.organization_members
    ADD CONSTRAINT organization_members_organization_id_fkey FOREIGN KEY (organization_id) REFERENCES public.organizations(id);
ALTER TABLE ONLY public.organization_members
    ADD CONSTRAINT organization_members_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id);
ALTER TABLE ONLY public.projects
    ADD CONSTRAINT projects_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.prompt_commits
    ADD CONSTRAINT prompt_commits_parent_id_fkey FOREIGN KEY (parent_id) REFERENCES public.prompt_commits(id);
ALTER TABLE ONLY public.prompt_commits
    ADD CONSTRAINT prompt_commits_repo_id_fkey FOREIGN KEY (repo_id) REFERENCES public.prompt_repos(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.prompt_likes
    ADD CONSTRAINT prompt_likes_repo_id_fkey FOREIGN KEY (repo_id) REFERENCES public.prompt_repos(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.prompt_repos
    ADD CONSTRAINT prompt_repos_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.prompt_tags
    ADD CONSTRAINT prompt_tags_commit_id_fkey FOREIGN KEY (commit_id) REFERENCES public.prompt_commits(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.prompt_tags
    ADD CONSTRAINT prompt_tags_repo_id_fkey FOREIGN KEY (repo_id) REFERENCES public.prompt_repos(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.push_deliveries
    ADD CONSTRAINT push_deliveries_integration_id_fkey FOREIGN KEY (integration_id) REFERENCES public.integrations(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.queued_runs
    ADD CONSTRAINT queued_runs_workspace_id_queue_id_fkey FOREIGN KEY (workspace_id, queue_id) REFERENCES public.annotation_queues(workspace_id, id) ON DELETE CASCADE;
ALTER TABLE ONLY public.revision_logs
    ADD CONSTRAINT revision_logs_deployment_id_fkey FOREIGN KEY (deployment_id) REFERENCES public.deployments(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.revision_logs
    ADD CONSTRAINT revision_logs_revision_id_fkey FOREIGN KEY (revision_id) REFERENCES public.revisions(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.revision_moves
    ADD CONSTRAINT revision_moves_revision_id_fkey FOREIGN KEY (revision_id) REFERENCES public.revisions(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.revisions
    ADD CONSTRAINT revisions_deployment_id_fkey FOREIGN KEY (deployment_id) REFERENCES public.deployments(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.shared_datasets
    ADD CONSTRAINT shared_datasets_workspace_id_dataset_id_fkey FOREIGN KEY (workspace_id, dataset_id) REFERENCES public.datasets(workspace_id, id) ON DELETE CASCADE;
ALTER TABLE ONLY public.shared_runs
    ADD CONSTRAINT shared_runs_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.source_archives
    ADD CONSTRAINT source_archives_deployment_id_fkey FOREIGN KEY (deployment_id) REFERENCES public.deployments(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.usage_limits
    ADD CONSTRAINT usage_limits_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.users
    ADD CONSTRAINT users_organization_id_fkey FOREIGN KEY (organization_id) REFERENCES public.organizations(id);
ALTER TABLE ONLY public.workspace_members
    ADD CONSTRAINT workspace_members_user_id_fkey FOREIGN KEY (user_id) REFERENCES public.users(id);
ALTER TABLE ONLY public.workspace_members
    ADD CONSTRAINT workspace_members_workspace_id_fkey FOREIGN KEY (workspace_id) REFERENCES public.workspaces(id);
ALTER TABLE ONLY public.workspaces
    ADD CONSTRAINT workspaces_organization_id_fkey FOREIGN KEY (organization_id) REFERENCES public.organizations(id);
INSERT INTO public.applied_migrations (room, number, name, checksum)
SELECT room, split_part(name, '_', 1)::int, name, '' FROM (VALUES
    ('annotation', '0001_annotation.sql'), ('control', '0001_control.sql'),
    ('control', '0002_sources.sql'), ('control', '0003_moves.sql'),
    ('control', '0005_archives.sql'), ('control', '0006_integrations.sql'),
    ('control', '0007_polls.sql'), ('control', '0008_scaling.sql'),
    ('control', '0009_metrics.sql'), ('control', '0010_deleted_workspaces.sql'),
    ('datasets', '0001_datasets.sql'), ('datasets', '0002_order.sql'),
    ('identity', '0001_identity.sql'), ('identity', '0002_members.sql'),
    ('identity', '0003_deleted_workspaces.sql'), ('limits', '0001_limits.sql'),
    ('prompts', '0001_prompts.sql'), ('tracing', '0001_tracing.sql'),
    ('tracing', '0002_readable_runs.sql'), ('tracing', '0003_feedback.sql'),
    ('tracing', '0004_filters_and_shares.sql'), ('tracing', '0005_figures.sql'),
    ('tracing', '0006_charts.sql'), ('tracing', '0007_retention.sql'),
    ('tracing', '0008_usage_limits.sql'), ('tracing', '0009_faster_ingest.sql'),
    ('tracing', '0010_figures_of_days.sql'), ('tracing', '0011_runs_of_projects.sql'),
    ('usage', '0001_days.sql'), ('usage', '0002_hours.sql'),
    ('usage', '0003_days_of_projects.sql')
) AS applied (room, name);
