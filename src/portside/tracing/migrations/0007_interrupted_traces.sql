-- A graph that asks a person ends without an error; only runs below it say that it was interrupted. The root remembers that,
-- so that lists need not read whole traces.
-- Older versions run: the column has a default, and what they write shows traces as before.
alter table runs add column has_interrupts boolean not null default false;

update runs r set has_interrupts = true
from (
    select distinct workspace_id, trace_id from runs
    where error is not null and left(error, 80) ~ '^(GraphInterrupt|NodeInterrupt|GraphDrained)\(' and trace_id <> id
) i
where r.workspace_id = i.workspace_id and r.id = i.trace_id;

drop index runs_with_errors;
create index runs_with_errors on runs (workspace_id, project_id, (coalesce(start_time, received_at)), id)
where error is not null or has_interrupts;
