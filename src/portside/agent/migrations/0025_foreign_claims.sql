-- A worker that claims a run learns whether another process admitted it and may have clients that follow it: it writes
-- down what such a run tells even before it has met that process.
drop function claim_runs(uuid, interval, int);

create function claim_runs(p_worker_id uuid, p_lease interval, p_limit int) returns table (
    run_id uuid, thread_id uuid, assistant_id uuid, kwargs jsonb, attempt int, is_temporary boolean, was_begun boolean,
    cancel_action text, cancel_reason text, waited_s float8, is_foreign boolean
)
-- The plan is made once for a connection, maybe while the table is empty.
language plpgsql set enable_seqscan = off set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    update runs r set is_delayed = false
    where r.run_id in (
        select d.run_id from runs d
        where d.status = 'pending' and d.is_delayed and d.run_after <= now()
        order by d.run_after limit 1000 for update skip locked
    );
    return query
        with ready as materialized (
            select n.run_id, n.started_at is not null as was_begun from runs n
            where n.status = 'pending' and not n.is_blocked and not n.is_delayed and n.run_after <= now()
            order by n.turn_at, n.number limit p_limit for update skip locked
        )
        update runs r set
            status = 'running', attempt = r.attempt + 1, worker_id = p_worker_id, updated_at = now(),
            started_at = coalesce(r.started_at, now()), leased_until = now() + p_lease
        from ready where r.run_id = ready.run_id
        returning r.run_id, r.thread_id, r.assistant_id, r.kwargs, r.attempt, r.is_temporary, ready.was_begun,
            r.cancel_action, r.cancel_reason, extract(epoch from now() - greatest(r.run_after, r.created_at))::float8,
            coalesce(r.admitted_by <> p_worker_id, false);
end $$;
