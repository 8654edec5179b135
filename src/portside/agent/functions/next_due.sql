-- When an agent next has something to do. A platform that stopped the agent's idle servers starts them again then.

-- Now if a run is ready or was left by a server that died; the time of the next delayed run, cron or webhook delivery; null
-- if there is none. Each part is one lookup in an index.
create or replace function next_due_at() returns timestamptz
language sql stable
return least(
    case when exists (select from runs where status = 'running') then now() end,
    case when exists (select from runs where status = 'pending' and not is_blocked and not is_delayed) then now() end,
    (select min(run_after) from runs where status = 'pending' and is_delayed),
    (select min(next_run_date) from crons where is_enabled),
    (select min(due_at) from webhook_deliveries where status = 'pending')
);
