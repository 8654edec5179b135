-- What filters compare by. No operator asks nothing; null is unequal to everything and in no other relation.
create function says(actual text, op text, wanted text[]) returns boolean
language sql immutable
as $$
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

create function weighs(actual float8, op text, wanted float8[]) returns boolean
language sql immutable
as $$
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

create function falls(actual timestamptz, op text, wanted timestamptz[]) returns boolean
language sql immutable
as $$
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

-- A run without a trace is one of its own.
drop index runs_of_trace;
create index runs_of_trace on runs (workspace_id, (coalesce(trace_id, id)));

-- Whoever has the token sees the run and what is below it. A run that is shared again keeps its token.
create table shared_runs (
    share_token uuid primary key,
    workspace_id uuid not null references workspaces (id),
    run_id uuid not null,
    created_at timestamptz not null default now(),
    unique (workspace_id, run_id)
);
