-- The schema of an agent server after the last migration before the baselines, as pg_dump writes it. Functions in
-- PL/pgSQL that no table uses have no bodies: adoption drops them.
CREATE SCHEMA portside;
CREATE EXTENSION IF NOT EXISTS pg_trgm WITH SCHEMA public;
CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public;
CREATE FUNCTION portside.a2a_state(p_status text, p_is_closed boolean, p_is_last boolean, p_is_waiting boolean) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    select case
        when p_status = 'pending' then 'submitted'
        when p_status = 'running' then 'working'
        when p_status in ('error', 'timeout') then 'failed'
        when p_status = 'interrupted' or p_is_closed then 'canceled'
        when p_is_last and p_is_waiting then 'input-required'
        else 'completed'
    end
$$;
CREATE FUNCTION portside.admit_run(p_run_id uuid, p_thread_id uuid, p_assistant_id uuid, p_metadata jsonb, p_kwargs jsonb, p_strategy text, p_thread_metadata jsonb, p_create_thread boolean, p_temporary boolean, p_delay interval, p_admitted_by uuid, p_worker_id uuid, p_lease interval) RETURNS TABLE(outcome text, attempt integer, created_at timestamp with time zone)
    LANGUAGE plpgsql
    AS $$begin end $$;
CREATE FUNCTION portside.admit_run(p_run_id uuid, p_thread_id uuid, p_assistant_id uuid, p_inherited jsonb, p_metadata jsonb, p_kwargs jsonb, p_strategy text, p_priority integer, p_thread_metadata jsonb, p_thread_config jsonb, p_create_thread boolean, p_temporary boolean, p_delay interval, p_key_scope uuid, p_key text, p_key_place integer, p_digest text, p_admitted_by uuid, p_worker_id uuid, p_lease interval) RETURNS TABLE(outcome text, attempt integer, created_at timestamp with time zone, run_id uuid, thread_id uuid, metadata jsonb)
    LANGUAGE sql
    AS $$begin end $$;
CREATE FUNCTION portside.admit_run(p_run_id uuid, p_thread_id uuid, p_assistant_id uuid, p_inherited jsonb, p_metadata jsonb, p_kwargs jsonb, p_strategy text, p_priority integer, p_thread_metadata jsonb, p_thread_config jsonb, p_create_thread boolean, p_temporary boolean, p_delay interval, p_key_scope uuid, p_key text, p_key_place integer, p_digest text, p_admitted_by uuid, p_worker_id uuid, p_lease interval, p_asked_by text) RETURNS TABLE(outcome text, attempt integer, created_at timestamp with time zone, run_id uuid, thread_id uuid, metadata jsonb)
    LANGUAGE plpgsql
    AS $$begin end $$;
CREATE FUNCTION portside.admit_run_for(p_access jsonb, p_new_thread jsonb, p_run_id uuid, p_thread_id uuid, p_assistant_id uuid, p_inherited jsonb, p_metadata jsonb, p_kwargs jsonb, p_strategy text, p_priority integer, p_thread_metadata jsonb, p_thread_config jsonb, p_create_thread boolean, p_temporary boolean, p_delay interval, p_key_scope uuid, p_key text, p_key_place integer, p_digest text, p_admitted_by uuid, p_worker_id uuid, p_lease interval) RETURNS TABLE(outcome text, attempt integer, created_at timestamp with time zone, run_id uuid, thread_id uuid, metadata jsonb)
    LANGUAGE sql
    AS $$begin end $$;
CREATE FUNCTION portside.admit_run_for(p_access jsonb, p_new_thread jsonb, p_run_id uuid, p_thread_id uuid, p_assistant_id uuid, p_inherited jsonb, p_metadata jsonb, p_kwargs jsonb, p_strategy text, p_priority integer, p_thread_metadata jsonb, p_thread_config jsonb, p_create_thread boolean, p_temporary boolean, p_delay interval, p_key_scope uuid, p_key text, p_key_place integer, p_digest text, p_admitted_by uuid, p_worker_id uuid, p_lease interval, p_asked_by text) RETURNS TABLE(outcome text, attempt integer, created_at timestamp with time zone, run_id uuid, thread_id uuid, metadata jsonb)
    LANGUAGE plpgsql
    AS $$begin end $$;
CREATE FUNCTION portside.admit_runs(p_admissions jsonb, p_worker_id uuid, p_lease interval, p_waits boolean) RETURNS TABLE(place integer, outcome text, attempt integer, created_at timestamp with time zone, run_id uuid, thread_id uuid, metadata jsonb)
    LANGUAGE plpgsql
    AS $$begin end $$;
CREATE FUNCTION portside.cancel_runs(p_thread_id uuid, p_run_ids uuid[], p_statuses text[], p_action text, p_reason text, p_after uuid, p_limit integer) RETURNS TABLE(thread_id uuid, run_id uuid, outcome text)
    LANGUAGE plpgsql
    AS $$begin end $$;
CREATE FUNCTION portside.cancel_runs(p_thread_id uuid, p_run_ids uuid[], p_assistant_id uuid, p_statuses text[], p_action text, p_reason text, p_after uuid, p_limit integer) RETURNS TABLE(thread_id uuid, run_id uuid, outcome text)
    LANGUAGE plpgsql
    AS $$begin end $$;
CREATE FUNCTION portside.cancel_thread_runs(p_thread_id uuid, p_run_ids uuid[], p_statuses text[], p_action text, p_reason text) RETURNS TABLE(run_id uuid, outcome text)
    LANGUAGE plpgsql
    AS $$begin end $$;
CREATE FUNCTION portside.claim_runs(p_worker_id uuid, p_lease interval, p_limit integer) RETURNS TABLE(run_id uuid, thread_id uuid, assistant_id uuid, kwargs jsonb, attempt integer, is_temporary boolean, was_begun boolean, cancel_action text, cancel_reason text, waited_s double precision, is_foreign boolean)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    AS $$begin end $$;
CREATE FUNCTION portside.condition_holds(p_metadata jsonb, p_condition jsonb) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$begin end $$;
CREATE FUNCTION portside.count_waiting(p_asked_by text, p_most integer) RETURNS integer
    LANGUAGE sql STABLE
    SET enable_seqscan TO 'off'
    AS $$begin end $$;
CREATE FUNCTION portside.default_ttl_minutes() RETURNS double precision
    LANGUAGE sql STABLE
    AS $$select ttl_minutes from thread_lifetime$$;
CREATE FUNCTION portside.default_ttl_strategy() RETURNS text
    LANGUAGE sql STABLE
    AS $$select strategy from thread_lifetime$$;
CREATE FUNCTION portside.delete_run(p_run_id uuid, p_thread_id uuid, p_worker_id uuid, p_lease interval, p_reason text) RETURNS TABLE(outcome text, assistant_id uuid, kwargs jsonb, attempt integer, is_temporary boolean)
    LANGUAGE plpgsql
    AS $$
declare
    active int;
    target runs;
    before runs;
    done text;
begin
    select t.active_runs into active from threads t where t.thread_id = p_thread_id for update;
    select r.* into target from runs r where r.run_id = p_run_id and r.thread_id = p_thread_id for update;
    if not found then
        return query select 'missing', null::uuid, null::jsonb, 0, false;
        return;
    end if;
    if target.status in ('pending', 'running') then
        select c.outcome into done
        from cancel_thread_runs(p_thread_id, array[p_run_id], array['pending', 'running'], 'rollback', p_reason) c;
        return query select done, null::uuid, null::jsonb, 0, false;
        return;
    end if;
    if active > 0 then
        return query select 'busy', null::uuid, null::jsonb, 0, false;
        return;
    end if;
    -- What the thread says of its last run goes with that run.
    if not exists (select from runs n where n.thread_id = p_thread_id and n.number > target.number) then
        select r.* into before from runs r
        where r.thread_id = p_thread_id and r.number < target.number order by r.number desc limit 1;
        update threads t set
            status = case when before.status in ('error', 'timeout') then 'error' else 'idle' end,
            error = case when before.status in ('error', 'timeout') then before.error end
        where t.thread_id = p_thread_id;
    end if;
    update threads t set active_runs = 1, resting_status = t.status, status = 'busy' where t.thread_id = p_thread_id;
    update runs r set
        status = 'running', attempt = r.attempt + 1, worker_id = p_worker_id, leased_until = now() + p_lease,
        started_at = coalesce(r.started_at, now()), is_blocked = false, run_after = now(),
        cancel_action = 'rollback', cancel_reason = p_reason
    where r.run_id = p_run_id
    returning r.* into target;
    return query select 'reopened', target.assistant_id, target.kwargs, target.attempt, target.is_temporary;
end $$;
CREATE FUNCTION portside.end_run(p_run_id uuid, p_thread_id uuid, p_worker_id uuid, p_attempt integer, p_status text, p_thread_status text, p_values jsonb, p_interrupts jsonb, p_error jsonb) RETURNS text
    LANGUAGE plpgsql
    AS $$
declare
    before record;
    ended runs;
begin
    select t.resting_status, t.error into before from threads t where t.thread_id = p_thread_id for update;
    select r.* into ended from runs r
    where r.run_id = p_run_id and r.status = 'running' and r.worker_id = p_worker_id and r.attempt = p_attempt
    for update;
    if not found then
        return 'lost';
    end if;
    if ended.cancel_action = 'rollback' and p_status <> 'rolled_back' then
        return 'rollback';
    end if;
    if ended.is_temporary and (
        p_status = 'rolled_back'
        or (
            ended.admitted_by = p_worker_id and ended.attempt = 1
            and ended.request_key is null and ended.webhook is null
        )
    ) then
        delete from runs r where r.run_id = p_run_id;
        delete from threads t where t.thread_id = p_thread_id;
        return 'ended';
    end if;
    if p_status = 'rolled_back' then
        delete from runs r where r.run_id = p_run_id;
        if before.resting_status = 'error' then
            p_thread_status := 'error';
            p_error := before.error;
        end if;
        -- The thread is again of the graph that its last run is of.
        update threads t set metadata = t.metadata || last.own
        from (
            select jsonb_build_object(
                'assistant_id', r.assistant_id, 'graph_id', r.kwargs #>> '{config,configurable,graph_id}'
            ) as own
            from runs r where r.thread_id = p_thread_id order by r.number desc limit 1
        ) last
        where t.thread_id = p_thread_id;
    else
        update runs r set
            status = p_status, worker_id = null, leased_until = null, error = p_error, updated_at = now(),
            cancel_action = null, cancel_reason = case when p_status = 'interrupted' then r.cancel_reason end
        where r.run_id = p_run_id;
    end if;
    perform leave_thread(
        p_thread_id, p_thread_status, p_values, p_interrupts, case when p_thread_status is not null then p_error end,
        p_status = 'rolled_back'
    );
    if ended.is_temporary then
        update threads t set delete_after = kept_until(ended) where t.thread_id = p_thread_id;
    end if;
    return 'ended';
end $$;
CREATE FUNCTION portside.end_runs(p_worker_id uuid, p_run_ids uuid[], p_thread_ids uuid[], p_attempts integer[], p_statuses text[], p_thread_statuses text[], p_values text[], p_interrupts text[], p_errors text[], p_waits boolean, p_lease interval, p_claims integer, p_looks boolean) RETURNS TABLE(place integer, outcome text, has_next boolean, run_id uuid, thread_id uuid, assistant_id uuid, kwargs jsonb, attempt integer, is_temporary boolean, was_begun boolean, cancel_action text, cancel_reason text, waited_s double precision, is_foreign boolean)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
declare
    e record;
begin
    for e in
        select n.* from unnest(
            p_run_ids, p_thread_ids, p_attempts, p_statuses, p_thread_statuses, p_values, p_interrupts, p_errors
        ) with ordinality as n (run_id, thread_id, attempt, status, thread_status, "values", interrupts, error, place)
        order by n.thread_id
    loop
        place := e.place;
        outcome := null;
        if not p_waits then
            perform from threads t where t.thread_id = e.thread_id for update skip locked;
            if not found and exists (select from threads t where t.thread_id = e.thread_id) then
                outcome := 'locked';
            end if;
        end if;
        outcome := coalesce(outcome, end_run(
            e.run_id, e.thread_id, p_worker_id, e.attempt, e.status, e.thread_status, e."values"::jsonb,
            e.interrupts::jsonb, e.error::jsonb
        ));
        has_next := outcome = 'ended' and has_runs(e.thread_id);
        p_looks := p_looks or has_next;
        return next;
    end loop;
    if p_looks and p_claims > 0 then
        return query select null::int, 'claimed', false, c.* from claim_runs(p_worker_id, p_lease, p_claims) c;
    end if;
end $$;
CREATE FUNCTION portside.find_many_threads(p_ids uuid[], p_metadata jsonb, p_values jsonb, p_status text, p_sort text, p_limit integer, p_offset integer, p_access jsonb DEFAULT NULL::jsonb, OUT thread_ids uuid[], OUT total bigint) RETURNS record
    LANGUAGE plpgsql STABLE
    SET jit TO 'off'
    SET max_parallel_workers_per_gather TO '0'
    SET work_mem TO '16MB'
    SET enable_seqscan TO 'on'
    AS $_$
declare
    graph text := case jsonb_typeof(p_metadata -> 'graph_id') when 'string' then p_metadata ->> 'graph_id' end;
    assistant text := case jsonb_typeof(p_metadata -> 'assistant_id') when 'string' then p_metadata ->> 'assistant_id' end;
    metadata_wanted jsonb := nullif(
        p_metadata - array_remove(array[
            case when graph is not null then 'graph_id' end, case when assistant is not null then 'assistant_id' end
        ], null),
        '{}'
    );
    metadata_plain text[] := plain_fields(metadata_wanted);
    values_plain text[] := plain_fields(p_values);
    access_equal jsonb := nullif(p_access -> 'equal', '{}');
    access_plain text[] := plain_fields(access_equal);
    access_tested jsonb := case
        when jsonb_array_length(p_access -> 'rest') > 0 or other_fields(access_equal) is not null then p_access
    end;
    is_plain boolean := p_ids is null and other_fields(metadata_wanted) is null and other_fields(p_values) is null
        and access_tested is null;
    has_fields boolean := metadata_plain is not null or values_plain is not null or access_plain is not null;
    indexed text := concat_ws(
        ' and ', case when has_fields then 'is_temporary is not true' else 'not is_temporary' end,
        case when p_ids is not null then 'thread_id = any ($1)' end,
        case when metadata_plain is not null then 'plain_fields(metadata) @> $9' end,
        case when values_plain is not null then 'plain_fields("values") @> $10' end,
        case when access_plain is not null then 'plain_fields(metadata) @> $11' end,
        case when p_status is not null then 'status = $4' end,
        case when graph is not null then 'graph_id = $7' end,
        case when assistant is not null then 'assistant_id = $8' end
    );
    tested text := concat_ws(
        ' and ', indexed, 'not is_temporary',
        case when metadata_wanted is not null then 'metadata @> $2' end,
        case when p_values is not null then '"values" @> $3' end,
        case when access_equal is not null then 'metadata @> $12' end,
        case when access_tested is not null then 'fits(metadata, $13)' end
    );
    sorted text := case p_sort
        when 'thread_id asc' then 'thread_id'
        when 'thread_id desc' then 'thread_id desc'
        when 'status asc' then 'status, updated_at desc, thread_id'
        when 'status desc' then 'status desc, updated_at, thread_id desc'
        when 'created_at asc' then 'created_at, thread_id desc'
        when 'created_at desc' then 'created_at desc, thread_id'
        when 'state_updated_at asc' then 'state_updated_at, thread_id desc'
        when 'state_updated_at desc' then 'state_updated_at desc, thread_id'
        when 'updated_at asc' then 'updated_at, thread_id desc'
        else 'updated_at desc, thread_id'
    end;
    shown int;
begin
    if is_plain then
        execute format('select array(select thread_id from threads where %s order by %s limit $5 offset $6)', tested, sorted)
        into thread_ids
        using p_ids, metadata_wanted, p_values, p_status, p_limit, p_offset, graph, assistant, metadata_plain, values_plain,
            access_plain, access_equal, access_tested;
        shown := cardinality(thread_ids);
        if shown < p_limit and (shown > 0 or p_offset = 0) then
            total := p_offset + shown;
            return;
        end if;
        -- What an index found is never looked at again, though the planner reckons with it and would read the table.
        perform set_config('enable_seqscan', 'off', true);
        execute format('select count(*) from threads where %s', indexed)
        into total
        using p_ids, metadata_wanted, p_values, p_status, p_limit, p_offset, graph, assistant, metadata_plain, values_plain,
            access_plain, access_equal, access_tested;
        return;
    end if;
    execute format(
        'with found as materialized ('
        '    select thread_id, status, created_at, updated_at, state_updated_at from threads where %s'
        ') select array(select thread_id from found order by %s limit $5 offset $6), (select count(*) from found)',
        tested, sorted
    ) into thread_ids, total
    using p_ids, metadata_wanted, p_values, p_status, p_limit, p_offset, graph, assistant, metadata_plain, values_plain,
            access_plain, access_equal, access_tested;
end $_$;
CREATE FUNCTION portside.find_threads(p_ids uuid[], p_metadata jsonb, p_values jsonb, p_status text, p_sort text, p_limit integer, p_offset integer, p_access jsonb DEFAULT NULL::jsonb, OUT thread_ids uuid[], OUT total bigint) RETURNS record
    LANGUAGE plpgsql STABLE
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    AS $$
declare
    few constant int := 500;
    looked_at bigint;
    access_equal jsonb := nullif(p_access -> 'equal', '{}');
    -- A graph or an assistant is that of many threads.
    metadata_plain text[] := case
        when p_metadata is not null then plain_fields(p_metadata - '{graph_id,assistant_id}'::text[])
    end || case when access_equal is not null then plain_fields(access_equal) end;
    values_plain text[] := case when p_values is not null then plain_fields(p_values) end;
    access_tested jsonb := case when jsonb_array_length(p_access -> 'rest') > 0 then p_access end;
begin
    if p_ids is not null or metadata_plain is not null or values_plain is not null then
        with candidates as materialized (
            select thread_id, status, created_at, updated_at, state_updated_at, metadata, "values" from threads
            where p_ids is not null and thread_id = any (p_ids) and not is_temporary
            union all
            select thread_id, status, created_at, updated_at, state_updated_at, metadata, "values" from threads
            where p_ids is null and metadata_plain is not null and plain_fields(metadata) @> metadata_plain
                and is_temporary is not true
            union all
            select thread_id, status, created_at, updated_at, state_updated_at, metadata, "values" from threads
            where p_ids is null and metadata_plain is null and plain_fields("values") @> values_plain
                and is_temporary is not true
            limit few + 1
        ), fitting as materialized (
            select thread_id, status, created_at, updated_at, state_updated_at from candidates
            where (p_status is null or status = p_status)
                and (p_metadata is null or metadata @> p_metadata)
                and (p_values is null or "values" @> p_values)
                and (access_equal is null or metadata @> access_equal)
                and (access_tested is null or fits(metadata, access_tested))
        )
        select
            array(
                select thread_id from fitting
                order by
                    case p_sort when 'status asc' then status end,
                    case p_sort when 'status desc' then status end desc,
                    case p_sort
                        when 'updated_at desc' then updated_at when 'created_at desc' then created_at
                        when 'state_updated_at desc' then state_updated_at when 'status asc' then updated_at
                    end desc,
                    case p_sort
                        when 'updated_at asc' then updated_at when 'created_at asc' then created_at
                        when 'state_updated_at asc' then state_updated_at when 'status desc' then updated_at
                    end,
                    case when p_sort in (
                        'thread_id desc', 'status desc', 'updated_at asc', 'created_at asc', 'state_updated_at asc'
                    ) then thread_id end desc,
                    thread_id
                limit p_limit offset p_offset
            ),
            (select count(*) from fitting),
            (select count(*) from candidates)
        into thread_ids, total, looked_at;
        if looked_at <= few then
            return;
        end if;
    end if;
    select many.thread_ids, many.total into thread_ids, total
    from find_many_threads(p_ids, p_metadata, p_values, p_status, p_sort, p_limit, p_offset, p_access) many;
end $$;
CREATE FUNCTION portside.finish_run(p_run_id uuid, p_worker_id uuid, p_attempt integer, p_status text, p_thread_status text, p_values jsonb, p_interrupts jsonb, p_error jsonb) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
begin
    return end_run(
        p_run_id, (select r.thread_id from runs r where r.run_id = p_run_id), p_worker_id, p_attempt, p_status,
        p_thread_status, p_values, p_interrupts, p_error
    ) = 'ended';
end $$;
CREATE FUNCTION portside.fits(p_metadata jsonb, p_access jsonb) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
begin
    if p_access is null then
        return true;
    end if;
    return coalesce(p_metadata, '{}') @> (p_access -> 'equal')
        and condition_holds(coalesce(p_metadata, '{}'), jsonb_build_object('op', 'all', 'of', p_access -> 'rest'));
end $$;
CREATE FUNCTION portside.forget_thread() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    with writes as (
        delete from checkpoint_writes where thread_id = old.thread_id::text
    ), "values" as (
        delete from checkpoint_values where thread_id = old.thread_id::text
    )
    delete from checkpoints where thread_id = old.thread_id::text;
    return old;
end $$;
CREATE FUNCTION portside.has_runs(p_thread_id uuid) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
begin
    return coalesce((select t.active_runs > 0 from threads t where t.thread_id = p_thread_id), false);
end $$;
CREATE TABLE portside.runs (
    run_id uuid NOT NULL,
    number bigint NOT NULL,
    thread_id uuid NOT NULL,
    assistant_id uuid NOT NULL,
    status text NOT NULL,
    is_blocked boolean DEFAULT false NOT NULL,
    is_temporary boolean DEFAULT false NOT NULL,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    kwargs jsonb DEFAULT '{}'::jsonb NOT NULL,
    multitask_strategy text NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    admitted_by uuid,
    worker_id uuid,
    leased_until timestamp with time zone,
    run_after timestamp with time zone DEFAULT now() NOT NULL,
    error jsonb,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    cancel_action text,
    cancel_reason text,
    started_at timestamp with time zone,
    turn_at timestamp with time zone DEFAULT now() NOT NULL,
    is_delayed boolean DEFAULT false NOT NULL,
    key_scope uuid,
    request_key text,
    key_place integer,
    request_digest text,
    losses integer DEFAULT 0 NOT NULL,
    webhook text,
    asked_by text,
    CONSTRAINT runs_cancel_action_check CHECK ((cancel_action = ANY (ARRAY['interrupt'::text, 'rollback'::text]))),
    CONSTRAINT runs_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'running'::text, 'success'::text, 'error'::text, 'timeout'::text, 'interrupted'::text])))
);
CREATE FUNCTION portside.kept_until(p_run portside.runs) RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    AS $$
    select case
        when p_run.request_key is null then now() + interval '1 minute'
        else greatest(now() + interval '1 minute', p_run.created_at + run_key_lifetime())
    end
$$;
CREATE FUNCTION portside.leave_thread(p_thread_id uuid, p_status text, p_values jsonb, p_interrupts jsonb, p_error jsonb, p_replaces boolean) RETURNS void
    LANGUAGE plpgsql
    AS $$
declare
    remaining int;
begin
    update threads t set
        active_runs = t.active_runs - 1,
        resting_status = coalesce(p_status, t.resting_status),
        status = case when t.active_runs > 1 then 'busy' else coalesce(p_status, t.resting_status) end,
        "values" = case when p_replaces then p_values else coalesce(p_values, t."values") end,
        interrupts = coalesce(p_interrupts, t.interrupts, '{}'),
        error = case
            when p_status is not null then p_error
            when t.active_runs = 1 and t.resting_status <> 'error' then coalesce(p_error, t.error)
            else t.error
        end,
        updated_at = now(),
        state_updated_at = case when p_status is null then t.state_updated_at else now() end
    where t.thread_id = p_thread_id
    returning t.active_runs into remaining;
    -- The head of the queue may be ready already: a run from the middle of it leaves as well.
    if remaining > 0 then
        update runs r set is_blocked = false
        where r.is_blocked
            and r.run_id = (
                select n.run_id from runs n
                where n.thread_id = p_thread_id and n.status = 'pending' order by n.number limit 1
            )
            and not exists (select from runs h where h.thread_id = p_thread_id and h.status = 'running');
    end if;
end $$;
CREATE FUNCTION portside.make_store_vectors() RETURNS void
    LANGUAGE plpgsql
    AS $$
begin
    create table if not exists store_vectors (
        item_id bigint not null references store_items (id) on delete cascade,
        place int not null,
        revision bigint not null,
        embedding vector not null,
        primary key (item_id, place)
    ) with (toast_tuple_target = 8160);
end $$;
CREATE FUNCTION portside.note_webhook() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    new.webhook := new.kwargs ->> 'webhook';
    return new;
end $$;
CREATE FUNCTION portside.other_fields(p_json jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    AS $$
    select jsonb_object_agg(key, value) from jsonb_each(p_json)
    where plain_fields(jsonb_build_object(key, value)) is null
$$;
CREATE FUNCTION portside.owe_webhook() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
begin
    insert into webhook_deliveries (
        run_id, thread_id, url, run, "values", run_created_at, run_started_at, run_ended_at
    )
    select new.run_id, new.thread_id, new.webhook,
        jsonb_build_object(
            'assistant_id', new.assistant_id, 'metadata', new.metadata, 'status', new.status, 'kwargs', new.kwargs,
            'multitask_strategy', new.multitask_strategy, 'error', new.error, 'cancel_reason', new.cancel_reason
        ),
        t."values", new.created_at, new.started_at, new.updated_at
    from threads t where t.thread_id = new.thread_id
    on conflict do nothing;
    return null;
end $$;
CREATE FUNCTION portside.plain_fields(p_json jsonb) RETURNS text[]
    LANGUAGE plpgsql IMMUTABLE COST 1000 PARALLEL SAFE
    AS $$
begin
    return (
        select array_agg(label) from (
            select key || ':' || case jsonb_typeof(value)
                when 'number' then trim_scale(value::numeric)::text else value::text
            end as label
            from jsonb_each(case jsonb_typeof(p_json) when 'object' then p_json end)
            where jsonb_typeof(value) not in ('object', 'array') and pg_column_size(value) <= 300
        ) field
        where octet_length(label) <= 1000
    );
end $$;
CREATE FUNCTION portside.put_at(p_document jsonb, p_path text[], p_value jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    AS $$ select case when cardinality(p_path) = 0 then p_value else jsonb_set(p_document, p_path, p_value, false) end $$;
CREATE FUNCTION portside.release_expired_runs(p_limit integer, p_max_attempts integer) RETURNS TABLE(run_id uuid, outcome text)
    LANGUAGE plpgsql
    AS $$
declare
    candidate record;
    expired runs;
    reason jsonb;
begin
    for candidate in
        select r.run_id, r.thread_id from runs r where r.status = 'running' and r.leased_until < now()
        order by r.leased_until limit p_limit
    loop
        perform from threads t where t.thread_id = candidate.thread_id for update skip locked;
        continue when not found;
        select r.* into expired from runs r
        where r.run_id = candidate.run_id and r.status = 'running' and r.leased_until < now() for update skip locked;
        continue when not found;
        if expired.losses + 1 < p_max_attempts then
            update runs r set status = 'pending', worker_id = null, leased_until = null, losses = r.losses + 1
            where r.run_id = expired.run_id;
            return query select expired.run_id, 'released';
        else
            reason := jsonb_build_object(
                'error', 'WorkerLost',
                'message', format('the worker was lost %s times while executing this run', expired.losses + 1)
            );
            update runs r set
                status = 'error', worker_id = null, leased_until = null, error = reason, updated_at = now(),
                losses = r.losses + 1, cancel_action = null
            where r.run_id = expired.run_id;
            perform leave_thread(expired.thread_id, 'error', null, null, reason, false);
            update threads t set delete_after = kept_until(expired)
            where t.thread_id = expired.thread_id and expired.is_temporary;
            return query select expired.run_id, 'failed';
        end if;
    end loop;
end $$;
CREATE FUNCTION portside.run_key_lifetime() RETURNS interval
    LANGUAGE sql IMMUTABLE
    AS $$ select interval '24 hours' $$;
CREATE FUNCTION portside.store_compares(item jsonb, operator text, wanted jsonb) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $_$
declare
    sign int;
begin
    if operator = '$eq' then return coalesce(item, 'null') = wanted; end if;
    if operator = '$ne' then return coalesce(item, 'null') <> wanted; end if;
    if item is null or jsonb_typeof(item) <> jsonb_typeof(wanted) then return false; end if;
    if jsonb_typeof(wanted) = 'number' then
        sign := case when item::numeric < wanted::numeric then -1 when item::numeric > wanted::numeric then 1 else 0 end;
    elsif jsonb_typeof(wanted) = 'string' then
        sign := case
            when (item #>> '{}') collate "C" < (wanted #>> '{}') then -1
            when (item #>> '{}') collate "C" > (wanted #>> '{}') then 1
            else 0
        end;
    else
        return false;
    end if;
    return case operator
        when '$gt' then sign > 0 when '$gte' then sign >= 0 when '$lt' then sign < 0 when '$lte' then sign <= 0
    end;
end $_$;
CREATE FUNCTION portside.store_fits(item jsonb, contains jsonb, path jsonpath, operands jsonb, wanted jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$
    select case
        when contains is not null and not item @> contains then false
        when path is not null and jsonb_path_match(item, path, operands, true) is not true then false
        else wanted is null or store_matches(item, wanted)
    end
$$;
CREATE FUNCTION portside.store_matches(item jsonb, wanted jsonb) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$begin end $$;
CREATE FUNCTION portside.thread_expiry(p_updated_at timestamp with time zone, p_ttl_minutes double precision) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE
    AS $$select p_updated_at + make_interval(secs => p_ttl_minutes * 60)$$;
CREATE TABLE portside.applied_migrations (
    room text NOT NULL,
    number integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE portside.assistant_versions (
    assistant_id uuid NOT NULL,
    version integer NOT NULL,
    graph_id text NOT NULL,
    name text NOT NULL,
    description text,
    config jsonb NOT NULL,
    context jsonb NOT NULL,
    metadata jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE portside.assistants (
    assistant_id uuid NOT NULL,
    graph_id text NOT NULL,
    name text NOT NULL,
    description text,
    config jsonb DEFAULT '{}'::jsonb NOT NULL,
    context jsonb DEFAULT '{}'::jsonb NOT NULL,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    last_version integer DEFAULT 1 NOT NULL
);
CREATE UNLOGGED TABLE portside.cache_entries (
    key text NOT NULL,
    content text NOT NULL,
    stored_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL
);
CREATE TABLE portside.checkpoint_values (
    thread_id text NOT NULL COLLATE pg_catalog."C",
    checkpoint_ns text NOT NULL COLLATE pg_catalog."C",
    channel text NOT NULL COLLATE pg_catalog."C",
    version text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL,
    data bytea NOT NULL
);
CREATE TABLE portside.checkpoint_writes (
    thread_id text NOT NULL COLLATE pg_catalog."C",
    checkpoint_ns text NOT NULL COLLATE pg_catalog."C",
    checkpoint_id text NOT NULL COLLATE pg_catalog."C",
    task_id text NOT NULL COLLATE pg_catalog."C",
    idx integer NOT NULL,
    task_path text NOT NULL COLLATE pg_catalog."C",
    run_id text,
    channel text NOT NULL,
    kind text NOT NULL,
    data bytea NOT NULL
);
CREATE TABLE portside.checkpoints (
    thread_id text NOT NULL COLLATE pg_catalog."C",
    checkpoint_ns text NOT NULL COLLATE pg_catalog."C",
    checkpoint_id text NOT NULL COLLATE pg_catalog."C",
    parent_id text COLLATE pg_catalog."C",
    metadata jsonb NOT NULL,
    kind text NOT NULL,
    body bytea NOT NULL,
    channels text[] NOT NULL,
    versions text[] NOT NULL
);
CREATE VIEW portside.checkpoint_tuples AS
 SELECT c.thread_id,
    c.checkpoint_ns,
    c.checkpoint_id,
    c.parent_id,
    c.metadata,
    c.kind,
    c.body,
    v.channels AS value_channels,
    v.kinds AS value_kinds,
    v.datas AS value_datas,
    w.task_ids AS write_tasks,
    w.channels AS write_channels,
    w.kinds AS write_kinds,
    w.datas AS write_datas
   FROM ((portside.checkpoints c
     LEFT JOIN LATERAL ( SELECT array_agg(s.channel) AS channels,
            array_agg(s.kind) AS kinds,
            array_agg(s.data) AS datas
           FROM (UNNEST(c.channels, c.versions) held(channel, version)
             JOIN portside.checkpoint_values s ON (((s.thread_id = c.thread_id) AND (s.checkpoint_ns = c.checkpoint_ns) AND (s.channel = held.channel) AND (s.version = held.version))))) v ON (true))
     LEFT JOIN LATERAL ( SELECT array_agg(p.task_id) AS task_ids,
            array_agg(p.channel) AS channels,
            array_agg(p.kind) AS kinds,
            array_agg(p.data) AS datas
           FROM ( SELECT o.task_id,
                    o.channel,
                    o.kind,
                    o.data
                   FROM portside.checkpoint_writes o
                  WHERE ((o.thread_id = c.thread_id) AND (o.checkpoint_ns = c.checkpoint_ns) AND (o.checkpoint_id = c.checkpoint_id))
                  ORDER BY o.task_path, o.task_id, o.idx) p) w ON (true));
CREATE TABLE portside.crons (
    cron_id uuid NOT NULL,
    assistant_id uuid NOT NULL,
    thread_id uuid,
    user_id text DEFAULT ''::text NOT NULL,
    schedule text NOT NULL,
    timezone text,
    end_time text,
    ends_at timestamp with time zone,
    payload jsonb NOT NULL,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    on_run_completed text,
    is_enabled boolean DEFAULT true NOT NULL,
    next_run_date timestamp with time zone,
    claimed_until timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    owner jsonb,
    thread_access jsonb,
    last_run_id uuid,
    skipped_count bigint DEFAULT 0 NOT NULL,
    CONSTRAINT crons_on_run_completed_check CHECK ((on_run_completed = ANY (ARRAY['delete'::text, 'keep'::text])))
);
ALTER TABLE portside.runs ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME portside.runs_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE portside.store_indexes (
    generation integer NOT NULL,
    embed text NOT NULL,
    dims integer NOT NULL,
    fields text[] NOT NULL
);
CREATE TABLE portside.store_items (
    id bigint NOT NULL,
    namespace text[] NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    value jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    ttl_minutes double precision,
    expires_at timestamp with time zone,
    revision bigint DEFAULT 1 NOT NULL,
    index_fields jsonb,
    indexed_by integer,
    CONSTRAINT store_items_namespace_check CHECK ((cardinality(namespace) > 0))
);
ALTER TABLE portside.store_items ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME portside.store_items_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE portside.store_vectors (
    item_id bigint NOT NULL,
    place integer NOT NULL,
    revision bigint NOT NULL,
    embedding public.vector NOT NULL
)
WITH (toast_tuple_target='8160');
CREATE TABLE portside.stream_bus (
    name uuid NOT NULL
);
CREATE TABLE portside.stream_chunks (
    thread_id uuid NOT NULL,
    number bigint NOT NULL,
    run_id uuid,
    writer uuid NOT NULL,
    body bytea NOT NULL,
    written_at timestamp with time zone DEFAULT now() NOT NULL
);
ALTER TABLE ONLY portside.stream_chunks ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE portside.stream_heads (
    thread_id uuid NOT NULL,
    last bigint NOT NULL,
    added integer NOT NULL,
    touched_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE portside.stream_interests (
    thread_id uuid NOT NULL,
    process_id uuid NOT NULL
);
CREATE TABLE portside.stream_processes (
    process_id uuid NOT NULL,
    alive_until timestamp with time zone NOT NULL
);
CREATE TABLE portside.stream_sequences (
    thread_id uuid NOT NULL,
    event_id text NOT NULL,
    seq bigint NOT NULL,
    touched_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE portside.thread_lifetime (
    is_only boolean DEFAULT true NOT NULL,
    ttl_minutes double precision,
    strategy text DEFAULT 'delete'::text NOT NULL,
    CONSTRAINT thread_lifetime_is_only_check CHECK (is_only),
    CONSTRAINT thread_lifetime_strategy_check CHECK ((strategy = ANY (ARRAY['delete'::text, 'keep_latest'::text]))),
    CONSTRAINT thread_lifetime_ttl_minutes_check CHECK ((ttl_minutes > (0)::double precision))
);
CREATE TABLE portside.threads (
    thread_id uuid NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    state_updated_at timestamp with time zone DEFAULT now() NOT NULL,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    config jsonb DEFAULT '{}'::jsonb NOT NULL,
    status text DEFAULT 'idle'::text NOT NULL,
    "values" jsonb,
    interrupts jsonb,
    error jsonb,
    active_runs integer DEFAULT 0 NOT NULL,
    delete_after timestamp with time zone,
    ttl_minutes double precision DEFAULT portside.default_ttl_minutes(),
    ttl_strategy text DEFAULT portside.default_ttl_strategy() NOT NULL,
    pruned_for timestamp with time zone,
    graph_id text GENERATED ALWAYS AS (
CASE jsonb_typeof((metadata -> 'graph_id'::text))
    WHEN 'string'::text THEN (metadata ->> 'graph_id'::text)
    ELSE NULL::text
END) STORED,
    assistant_id text GENERATED ALWAYS AS (
CASE jsonb_typeof((metadata -> 'assistant_id'::text))
    WHEN 'string'::text THEN (metadata ->> 'assistant_id'::text)
    ELSE NULL::text
END) STORED,
    resting_status text DEFAULT 'idle'::text NOT NULL,
    is_temporary boolean DEFAULT false NOT NULL,
    CONSTRAINT threads_active_runs_check CHECK ((active_runs >= 0)),
    CONSTRAINT threads_resting_status_check CHECK ((resting_status = ANY (ARRAY['idle'::text, 'interrupted'::text, 'error'::text]))),
    CONSTRAINT threads_status_check CHECK ((status = ANY (ARRAY['idle'::text, 'busy'::text, 'interrupted'::text, 'error'::text]))),
    CONSTRAINT threads_ttl_minutes_check CHECK ((ttl_minutes > (0)::double precision)),
    CONSTRAINT threads_ttl_strategy_check CHECK ((ttl_strategy = ANY (ARRAY['delete'::text, 'keep_latest'::text])))
)
WITH (toast_tuple_target='512');
ALTER TABLE ONLY portside.threads ALTER COLUMN metadata SET STORAGE MAIN;
CREATE TABLE portside.webhook_deliveries (
    run_id uuid NOT NULL,
    thread_id uuid NOT NULL,
    url text NOT NULL,
    host text GENERATED ALWAYS AS (COALESCE("substring"(lower(url), '^[a-z]+://([^/?#]*)'::text), ''::text)) STORED NOT NULL,
    status text DEFAULT 'pending'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    due_at timestamp with time zone DEFAULT now() NOT NULL,
    log jsonb DEFAULT '[]'::jsonb NOT NULL,
    run jsonb,
    "values" jsonb,
    run_created_at timestamp with time zone NOT NULL,
    run_started_at timestamp with time zone,
    run_ended_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT webhook_deliveries_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'delivered'::text, 'failed'::text])))
);
ALTER TABLE ONLY portside.applied_migrations
    ADD CONSTRAINT applied_migrations_pkey PRIMARY KEY (room, number);
ALTER TABLE ONLY portside.assistant_versions
    ADD CONSTRAINT assistant_versions_pkey PRIMARY KEY (assistant_id, version);
ALTER TABLE ONLY portside.assistants
    ADD CONSTRAINT assistants_pkey PRIMARY KEY (assistant_id);
ALTER TABLE ONLY portside.cache_entries
    ADD CONSTRAINT cache_entries_pkey PRIMARY KEY (key);
ALTER TABLE ONLY portside.checkpoint_values
    ADD CONSTRAINT checkpoint_values_pkey PRIMARY KEY (thread_id, checkpoint_ns, channel, version);
ALTER TABLE ONLY portside.checkpoint_writes
    ADD CONSTRAINT checkpoint_writes_pkey PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id, task_id, idx);
ALTER TABLE ONLY portside.checkpoints
    ADD CONSTRAINT checkpoints_pkey PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id);
ALTER TABLE ONLY portside.crons
    ADD CONSTRAINT crons_pkey PRIMARY KEY (cron_id);
ALTER TABLE ONLY portside.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (run_id);
ALTER TABLE ONLY portside.store_indexes
    ADD CONSTRAINT store_indexes_pkey PRIMARY KEY (generation);
ALTER TABLE ONLY portside.store_items
    ADD CONSTRAINT store_items_id_key UNIQUE (id);
ALTER TABLE ONLY portside.store_items
    ADD CONSTRAINT store_items_pkey PRIMARY KEY (namespace, key) INCLUDE (expires_at);
ALTER TABLE ONLY portside.store_vectors
    ADD CONSTRAINT store_vectors_pkey PRIMARY KEY (item_id, place);
ALTER TABLE ONLY portside.stream_chunks
    ADD CONSTRAINT stream_chunks_pkey PRIMARY KEY (thread_id, number);
ALTER TABLE ONLY portside.stream_heads
    ADD CONSTRAINT stream_heads_pkey PRIMARY KEY (thread_id);
ALTER TABLE ONLY portside.stream_interests
    ADD CONSTRAINT stream_interests_pkey PRIMARY KEY (thread_id, process_id);
ALTER TABLE ONLY portside.stream_processes
    ADD CONSTRAINT stream_processes_pkey PRIMARY KEY (process_id);
ALTER TABLE ONLY portside.stream_sequences
    ADD CONSTRAINT stream_sequences_pkey PRIMARY KEY (thread_id);
ALTER TABLE ONLY portside.thread_lifetime
    ADD CONSTRAINT thread_lifetime_pkey PRIMARY KEY (is_only);
ALTER TABLE ONLY portside.threads
    ADD CONSTRAINT threads_pkey PRIMARY KEY (thread_id);
ALTER TABLE ONLY portside.webhook_deliveries
    ADD CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (run_id);
CREATE INDEX assistants_by_creation ON portside.assistants USING btree (created_at DESC, assistant_id);
CREATE INDEX assistants_by_metadata ON portside.assistants USING gin (metadata jsonb_path_ops);
CREATE INDEX assistants_by_name ON portside.assistants USING gin (lower(name) public.gin_trgm_ops);
CREATE INDEX assistants_of_graph ON portside.assistants USING btree (graph_id, created_at DESC, assistant_id);
CREATE INDEX cache_entries_expiry ON portside.cache_entries USING btree (expires_at);
CREATE INDEX checkpoint_writes_of_run ON portside.checkpoint_writes USING btree (run_id) WHERE (run_id IS NOT NULL);
CREATE INDEX checkpoints_of_run ON portside.checkpoints USING btree (((metadata ->> 'run_id'::text))) WHERE ((metadata ->> 'run_id'::text) IS NOT NULL);
CREATE INDEX crons_by_creation ON portside.crons USING btree (created_at DESC, cron_id DESC);
CREATE INDEX crons_by_metadata ON portside.crons USING gin (metadata jsonb_path_ops);
CREATE INDEX crons_due ON portside.crons USING btree (next_run_date) WHERE is_enabled;
CREATE INDEX crons_of_assistant ON portside.crons USING btree (assistant_id);
CREATE INDEX crons_of_thread ON portside.crons USING btree (thread_id) WHERE (thread_id IS NOT NULL);
CREATE INDEX runs_active ON portside.runs USING btree (thread_id, number) WHERE (status = ANY (ARRAY['pending'::text, 'running'::text]));
CREATE UNIQUE INDEX runs_by_key ON portside.runs USING btree (key_scope, request_key, key_place) WHERE (request_key IS NOT NULL);
CREATE INDEX runs_delayed ON portside.runs USING btree (run_after) WHERE ((status = 'pending'::text) AND is_delayed);
CREATE INDEX runs_leased ON portside.runs USING btree (leased_until) WHERE (status = 'running'::text);
CREATE INDEX runs_of_a2a_tasks ON portside.runs USING btree (assistant_id, thread_id, ((metadata ->> 'a2a.task_start_id'::text)), number DESC) WHERE (metadata ? 'a2a.task_start_id'::text);
CREATE INDEX runs_of_thread ON portside.runs USING btree (thread_id, number DESC);
CREATE UNIQUE INDEX runs_one_running ON portside.runs USING btree (thread_id) WHERE (status = 'running'::text);
CREATE INDEX runs_ready ON portside.runs USING btree (turn_at, number) WHERE ((status = 'pending'::text) AND (NOT is_blocked) AND (NOT is_delayed));
CREATE INDEX runs_waiting_for ON portside.runs USING btree (asked_by) WHERE ((status = 'pending'::text) AND (asked_by IS NOT NULL));
CREATE INDEX runs_with_keys ON portside.runs USING btree (created_at) WHERE (request_key IS NOT NULL);
CREATE INDEX store_items_by_update ON portside.store_items USING btree (updated_at DESC, id DESC);
CREATE INDEX store_items_to_delete ON portside.store_items USING btree (expires_at) WHERE (expires_at IS NOT NULL);
CREATE INDEX store_items_to_index ON portside.store_items USING btree (COALESCE(indexed_by, 0), id);
CREATE INDEX stream_chunks_by_age ON portside.stream_chunks USING btree (written_at);
CREATE INDEX stream_interests_of_process ON portside.stream_interests USING btree (process_id);
CREATE INDEX threads_by_assistant ON portside.threads USING btree (assistant_id) WHERE (NOT is_temporary);
CREATE INDEX threads_by_creation ON portside.threads USING btree (created_at DESC, thread_id) WHERE (NOT is_temporary);
CREATE INDEX threads_by_graph ON portside.threads USING btree (graph_id) WHERE (NOT is_temporary);
CREATE INDEX threads_by_metadata ON portside.threads USING gin (metadata jsonb_path_ops) WHERE (NOT is_temporary);
CREATE INDEX threads_by_plain_metadata ON portside.threads USING gin (portside.plain_fields(metadata)) WITH (gin_pending_list_limit='256') WHERE (is_temporary IS NOT TRUE);
CREATE INDEX threads_by_plain_values ON portside.threads USING gin (portside.plain_fields("values")) WITH (gin_pending_list_limit='256') WHERE (is_temporary IS NOT TRUE);
CREATE INDEX threads_by_state_update ON portside.threads USING btree (state_updated_at DESC, thread_id) WHERE (NOT is_temporary);
CREATE INDEX threads_by_status ON portside.threads USING btree (status) WHERE (NOT is_temporary);
CREATE INDEX threads_by_update ON portside.threads USING btree (updated_at DESC, thread_id) WHERE (NOT is_temporary);
CREATE INDEX threads_to_delete ON portside.threads USING btree (delete_after) WHERE (delete_after IS NOT NULL);
CREATE INDEX threads_to_expire ON portside.threads USING btree (portside.thread_expiry(updated_at, ttl_minutes)) WHERE ((ttl_minutes IS NOT NULL) AND (pruned_for IS DISTINCT FROM updated_at));
CREATE INDEX webhook_deliveries_due ON portside.webhook_deliveries USING btree (due_at) WHERE (status = 'pending'::text);
CREATE INDEX webhook_deliveries_over ON portside.webhook_deliveries USING btree (updated_at) WHERE (status <> 'pending'::text);
CREATE STATISTICS portside.plain_metadata_of_threads ON portside.plain_fields(metadata) FROM portside.threads;
CREATE STATISTICS portside.plain_values_of_threads ON portside.plain_fields("values") FROM portside.threads;
CREATE TRIGGER runs_note_webhook BEFORE INSERT ON portside.runs FOR EACH ROW WHEN (((new.kwargs ->> 'webhook'::text) IS NOT NULL)) EXECUTE FUNCTION portside.note_webhook();
CREATE CONSTRAINT TRIGGER runs_owe_webhook AFTER UPDATE OF status ON portside.runs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (((new.webhook IS NOT NULL) AND (old.status = ANY (ARRAY['pending'::text, 'running'::text])) AND (new.status = ANY (ARRAY['success'::text, 'error'::text, 'timeout'::text, 'interrupted'::text])))) EXECUTE FUNCTION portside.owe_webhook();
CREATE TRIGGER threads_are_forgotten AFTER DELETE ON portside.threads FOR EACH ROW EXECUTE FUNCTION portside.forget_thread();
ALTER TABLE ONLY portside.assistant_versions
    ADD CONSTRAINT assistant_versions_assistant_id_fkey FOREIGN KEY (assistant_id) REFERENCES portside.assistants(assistant_id) ON DELETE CASCADE;
ALTER TABLE ONLY portside.crons
    ADD CONSTRAINT crons_assistant_id_fkey FOREIGN KEY (assistant_id) REFERENCES portside.assistants(assistant_id) ON DELETE CASCADE;
ALTER TABLE ONLY portside.crons
    ADD CONSTRAINT crons_thread_id_fkey FOREIGN KEY (thread_id) REFERENCES portside.threads(thread_id) ON DELETE CASCADE;
ALTER TABLE ONLY portside.runs
    ADD CONSTRAINT runs_thread_id_fkey FOREIGN KEY (thread_id) REFERENCES portside.threads(thread_id) ON DELETE CASCADE;
ALTER TABLE ONLY portside.store_vectors
    ADD CONSTRAINT store_vectors_item_id_fkey FOREIGN KEY (item_id) REFERENCES portside.store_items(id) ON DELETE CASCADE;
ALTER TABLE ONLY portside.stream_interests
    ADD CONSTRAINT stream_interests_process_id_fkey FOREIGN KEY (process_id) REFERENCES portside.stream_processes(process_id) ON DELETE CASCADE;
INSERT INTO portside.applied_migrations (room, number, name, checksum)
SELECT room, split_part(name, '_', 1)::int, name, '' FROM (VALUES
    ('agent', '0001_checkpoints.sql'), ('agent', '0002_resources.sql'),
    ('agent', '0003_run_lifecycle.sql'), ('agent', '0004_assistant_versions.sql'),
    ('agent', '0005_threads.sql'), ('agent', '0006_cancel.sql'),
    ('agent', '0007_store.sql'), ('agent', '0009_crons.sql'),
    ('agent', '0010_admission.sql'), ('agent', '0011_streams.sql'),
    ('agent', '0012_thread_search.sql'), ('agent', '0013_status_index.sql'),
    ('agent', '0020_losses.sql'), ('agent', '0025_foreign_claims.sql'),
    ('agent', '0026_access.sql'), ('agent', '0027_access_search.sql'),
    ('agent', '0028_cron_owners.sql'), ('agent', '0030_encryption.sql'),
    ('agent', '0035_webhooks.sql'), ('agent', '0040_a2a.sql'),
    ('agent', '0041_cache.sql'), ('agent', '0042_callers.sql'),
    ('agent', '0043_next_runs.sql'), ('agent', '0044_passing_threads.sql'),
    ('agent', '0045_shared_trips.sql'), ('agent', '0046_few_threads.sql'),
    ('agent', '0049_cron_runs.sql')
) AS applied (room, name);
