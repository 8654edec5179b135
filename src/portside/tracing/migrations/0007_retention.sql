-- A trace is kept for as long as its tier says. What was billed stays: a trace that is over keeps its row here.
-- `extended_at` is when a trace became long-lived; null of one that has been from the beginning.
alter table projects add column trace_tier text;
alter table traces
    add column tier text not null default 'longlived',
    add column extended_at timestamptz,
    add column expired_at timestamptz;

create index traces_to_expire on traces (tier, received_at) where expired_at is null;

-- Whether feedback makes its trace long-lived: it does unless it says otherwise.
create function extends_trace(body text) returns boolean
language sql immutable
as $$
    select position('"extend_trace_retention"' in body) = 0
        or readable_json(body) ->> 'extend_trace_retention' is distinct from 'false'
$$;
