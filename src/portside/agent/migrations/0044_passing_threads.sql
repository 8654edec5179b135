-- The thread of a stateless run goes with its run: nobody searches for it, so no index but that of its id knows it.
alter table threads add column is_temporary boolean not null default false;
update threads t set is_temporary = true
where t.delete_after is not null or exists (select from runs r where r.thread_id = t.thread_id and r.is_temporary);

drop index threads_by_graph, threads_by_assistant, threads_by_status, threads_by_update, threads_by_creation,
    threads_by_state_update, threads_by_metadata, threads_by_plain_metadata, threads_by_plain_values;
create index threads_by_graph on threads (graph_id) where not is_temporary;
create index threads_by_assistant on threads (assistant_id) where not is_temporary;
create index threads_by_status on threads (status) where not is_temporary;
create index threads_by_update on threads (updated_at desc, thread_id) where not is_temporary;
create index threads_by_creation on threads (created_at desc, thread_id) where not is_temporary;
create index threads_by_state_update on threads (state_updated_at desc, thread_id) where not is_temporary;
create index threads_by_metadata on threads using gin (metadata jsonb_path_ops) where not is_temporary;

-- As before, in a language whose functions are not written into the expression of an index: an attempt to do so took
-- longer than the function itself, at each write.
create or replace function plain_fields(p_json jsonb) returns text[]
language plpgsql immutable parallel safe cost 1000
as $$
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

-- To the planner an index is of use wherever its condition holds, and it takes the test of a row's fields for as dear in one
-- index as in another: it would read the index of statuses whole and take the fields of every thread, to count them. So the
-- indexes of fields say in other words which threads they have, and a count says it in those words alone.
create index threads_by_plain_metadata on threads using gin (plain_fields(metadata)) with (gin_pending_list_limit = 256)
where is_temporary is not true;
create index threads_by_plain_values on threads using gin (plain_fields("values")) with (gin_pending_list_limit = 256)
where is_temporary is not true;

-- What many threads have in common Postgres would not know: of an index that leaves rows out it uses no statistics.
create statistics plain_metadata_of_threads on (plain_fields(metadata)) from threads;
create statistics plain_values_of_threads on (plain_fields("values")) from threads;

-- Admit a run under its thread's lock, as before; a new thread is written once, busy with its run.
create or replace function admit_run(
    p_run_id uuid, p_thread_id uuid, p_assistant_id uuid, p_inherited jsonb, p_metadata jsonb, p_kwargs jsonb,
    p_strategy text, p_priority int, p_thread_metadata jsonb, p_thread_config jsonb, p_create_thread boolean,
    p_temporary boolean, p_delay interval, p_key_scope uuid, p_key text, p_key_place int, p_digest text,
    p_admitted_by uuid, p_worker_id uuid, p_lease interval, p_asked_by text
) returns table (
    outcome text, attempt int, created_at timestamptz, run_id uuid, thread_id uuid, metadata jsonb
)
language plpgsql as $$
#variable_conflict use_column
declare
    nil constant uuid := '00000000-0000-0000-0000-000000000000';
    ahead int;
    labels jsonb;
    starts boolean;
    moment timestamptz;
    known runs;
    is_new boolean := false;
begin
    if p_key_scope = nil then
        select r.* into known from runs r
        where r.key_scope = p_key_scope and r.request_key = p_key and r.key_place = p_key_place
            and r.created_at > now() - run_key_lifetime();
    end if;
    if known.run_id is null then
        if p_create_thread then
            insert into threads (
                thread_id, is_temporary, active_runs, status, metadata, config, ttl_minutes, ttl_strategy
            ) values (
                p_thread_id, p_temporary, 1, 'busy', p_thread_metadata, p_thread_config,
                case when not p_temporary then default_ttl_minutes() end,
                case when p_temporary then 'delete' else default_ttl_strategy() end
            ) on conflict do nothing;
            is_new := found;
        end if;
        if is_new then
            ahead := 0;
            labels := '{}';
        else
            select t.active_runs, t.metadata - '{graph_id,assistant_id}'::text[] into ahead, labels
            from threads t where t.thread_id = p_thread_id for update;
            if not found then
                return query select 'missing', 0, now(), p_run_id, p_thread_id, '{}'::jsonb;
                return;
            end if;
        end if;
        if p_key is not null and p_key_scope <> nil then
            select r.* into known from runs r
            where r.key_scope = p_key_scope and r.request_key = p_key and r.key_place = p_key_place
                and r.created_at > now() - run_key_lifetime();
        end if;
    end if;
    if known.run_id is not null then
        return query select case when known.request_digest = p_digest then 'repeated' else 'reused' end,
            0, known.created_at, known.run_id, known.thread_id, known.metadata;
        return;
    end if;
    if ahead > 0 and p_strategy = 'reject' then
        return query select 'busy', 0, now(), p_run_id, p_thread_id, '{}'::jsonb;
        return;
    end if;
    if ahead > 0 and p_strategy in ('interrupt', 'rollback') then
        perform cancel_thread_runs(
            p_thread_id, null, array['pending', 'running'], p_strategy,
            format('superseded by run %s (multitask_strategy=%s)', p_run_id, p_strategy)
        );
        select t.active_runs into ahead from threads t where t.thread_id = p_thread_id;
    end if;
    if p_key is not null then
        -- One whose time is over, and that the sweep has not come to.
        update runs r set request_key = null
        where r.key_scope = p_key_scope and r.request_key = p_key and r.key_place = p_key_place
            and r.created_at <= now() - run_key_lifetime();
    end if;
    labels := p_inherited || labels || p_metadata;
    if labels <> p_inherited || p_metadata then
        p_kwargs := jsonb_set(p_kwargs, '{config,metadata}', coalesce(p_kwargs #> '{config,metadata}', '{}') || labels);
    end if;
    -- Taken under the lock, so that the runs of a thread are as old as their order says.
    moment := clock_timestamp();
    starts := ahead = 0 and p_worker_id is not null and p_delay <= interval '0';
    insert into runs (
        run_id, thread_id, assistant_id, status, is_blocked, is_delayed, is_temporary, metadata, kwargs,
        multitask_strategy, attempt, admitted_by, worker_id, leased_until, run_after, turn_at, started_at, created_at,
        updated_at, key_scope, request_key, key_place, request_digest, asked_by
    ) values (
        p_run_id, p_thread_id, p_assistant_id, case when starts then 'running' else 'pending' end, ahead > 0,
        p_delay > interval '0', p_temporary, labels, p_kwargs, p_strategy,
        case when starts then 1 else 0 end, p_admitted_by, case when starts then p_worker_id end,
        case when starts then now() + p_lease end, now() + p_delay,
        greatest(moment, now() + p_delay) + p_priority * interval '1 minute', case when starts then moment end, moment,
        moment, case when p_key is not null then p_key_scope end, p_key, p_key_place, p_digest, p_asked_by
    ) on conflict (key_scope, request_key, key_place) where request_key is not null do nothing;
    if not found then
        -- The same was asked for without a thread at the same moment, and was first.
        delete from threads t where t.thread_id = p_thread_id;
        return query
            select case when r.request_digest = p_digest then 'repeated' else 'reused' end,
                0, r.created_at, r.run_id, r.thread_id, r.metadata
            from runs r where r.key_scope = p_key_scope and r.request_key = p_key and r.key_place = p_key_place;
        return;
    end if;
    if not is_new then
        update threads t set
            active_runs = t.active_runs + 1, status = 'busy', updated_at = now(),
            resting_status = case when t.active_runs = 0 then t.status else t.resting_status end,
            metadata = t.metadata || p_thread_metadata, config = p_thread_config
        where t.thread_id = p_thread_id;
    end if;
    return query select case when starts then 'running' else 'pending' end, case when starts then 1 else 0 end, moment,
        p_run_id, p_thread_id, labels;
end $$;
