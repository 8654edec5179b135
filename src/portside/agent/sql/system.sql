-- name: queue_backlog
-- What waits and what runs, for metrics. Each count reads one partial index of `runs`, whose size is that of the backlog
-- and not of the history. A run waits from the moment it may start; a blocked one waits for its thread, so the longest
-- wait of those that are not blocked is what tells whether there are enough workers.
select
    count(*) filter (where is_due and not is_blocked) as n_ready,
    count(*) as n_pending,
    (select count(*) from runs where status = 'running') as n_running,
    coalesce(max(waits_s), 0) as longest_s,
    coalesce(percentile_cont(0.5) within group (order by waits_s) filter (where is_due), 0) as median_s,
    coalesce(max(waits_s) filter (where not is_blocked), 0) as longest_unblocked_s
from (
    select
        is_blocked, run_after <= now() as is_due,
        greatest(0, extract(epoch from now() - greatest(run_after, created_at)))::float8 as waits_s
    from runs where status = 'pending'
) pending

-- name: seconds_until_next_due
-- Null if nothing is; negative if something has been due for a while.
select extract(epoch from next_due_at() - now())::float8
