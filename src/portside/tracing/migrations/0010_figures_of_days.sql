-- What the runs of a project that began on a day are together, counted once the day is over. Days are UTC's. A value that
-- a percentile is told of is counted at its place: values of one place differ by 5 % at most.
create table figure_days (
    project_id uuid not null,
    day timestamptz not null,
    is_root boolean not null,
    runs bigint not null,
    failed bigint not null,
    streamed bigint not null,
    timed bigint not null,
    seconds float8,
    prompt_tokens numeric not null,
    completion_tokens numeric not null,
    total_tokens numeric not null,
    prompt_cost numeric,
    completion_cost numeric,
    total_cost numeric,
    last_start timestamptz not null,
    places smallint[] not null,
    counts bigint[] not null,
    primary key (project_id, day, is_root)
);

-- Days of a project of which a run was written or deleted long after it began: what was counted of such a day is not used
-- until it is counted again. Every transaction leaves rows of its own, so that none waits for another, and what one leaves
-- while a day is counted stays for the next time.
create table touched_days (
    project_id uuid not null,
    day timestamptz not null,
    written_by xid8 not null default pg_current_xact_id(),
    written_at timestamptz not null default now(),
    primary key (project_id, day, written_by)
);

-- Each day before `until` that has runs is counted or touched. There is one row or none.
create table figured_days (
    is_the_only boolean primary key default true check (is_the_only),
    until timestamptz not null
);

create function touch_day() returns trigger
language plpgsql
as $$
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

-- No day is counted before all that may speak of it without leaving a touch is over: an hour after its end.
create trigger touch_day_of_new after insert on runs for each row
when (coalesce(new.start_time, new.received_at) < now() - interval '1 hour')
execute function touch_day();

create trigger touch_day_of_changed after update on runs for each row
when (least(coalesce(old.start_time, old.received_at), coalesce(new.start_time, new.received_at))
    < now() - interval '1 hour')
execute function touch_day();

create trigger touch_day_of_deleted after delete on runs for each row
when (coalesce(old.start_time, old.received_at) < now() - interval '1 hour')
execute function touch_day();

-- Where a value is counted: 2000 places for each measure, the first for nothing and less, the others by its logarithm.
-- `figure_days.py` reads them.
create function place_of(measure int, value float8) returns smallint
language sql immutable
as $$
    select (measure * 2000 + case
        when value is null then null
        when value < 1e-9 then 0
        else 1000 + least(floor(ln(value) / ln(1.05)), 990)
    end)::smallint
$$;

-- Runs of a workspace that began from one moment until before another, each as a row that can be added to those of days.
create function measured_runs(workspace uuid, projects uuid[], since timestamptz, before timestamptz)
returns table (
    project_id uuid, began timestamptz, is_root boolean, runs bigint, failed bigint, streamed bigint, timed bigint,
    seconds float8, prompt_tokens bigint, completion_tokens bigint, total_tokens bigint, prompt_cost numeric,
    completion_cost numeric, total_cost numeric, last_start timestamptz, places smallint[], counts bigint[]
)
language sql stable
as $$
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
