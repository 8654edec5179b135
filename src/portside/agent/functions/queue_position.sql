-- The order of pending runs: callers share the slots (docs/why/run-queue.md). A run is queued one spacing behind the last
-- pending run of its caller at the same priority, so a caller with many pending runs does not delay all the others.

create or replace function queue_spacing() returns interval
language sql immutable
return interval '1 minute';

-- The queue position of a run that becomes pending: not before the run that is claimed next, and behind those of its
-- caller; then moved by its priority. A run without a caller is queued behind no other run.
-- Two runs that a caller admits at the same moment do not see each other, so each admission takes an advisory lock. It
-- waits briefly for that of another process: the other statement takes milliseconds, but may itself be waiting. After that
-- time the run moves back by a random number of spacings, so that hardly any two runs share a position.
create or replace function next_queue_position(p_caller text, p_priority int, p_moment timestamptz) returns timestamptz
-- The plan is made once for a connection, maybe while the table is empty.
language plpgsql set search_path from current set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
    random_offset interval := '0';
    -- Restored for the later statements of the transaction.
    lock_timeout_before text;
begin
    if p_caller is not null and not pg_try_advisory_xact_lock(hashtextextended(p_caller, p_priority)) then
        lock_timeout_before := current_setting('lock_timeout');
        begin
            perform set_config('lock_timeout', '50ms', true);
            perform pg_advisory_xact_lock(hashtextextended(p_caller, p_priority));
            perform set_config('lock_timeout', lock_timeout_before, true);
        exception when lock_not_available then
            random_offset := (1 + floor(random() * 8)) * queue_spacing();
        end;
    end if;
    return random_offset + greatest(
        p_moment + p_priority * interval '1 minute',
        (
            select r.queue_position + (p_priority - r.priority) * interval '1 minute' from runs r
            where r.status = 'pending' and not r.is_blocked and not r.is_delayed
            order by r.queue_position, r.number limit 1
        ),
        (
            select r.queue_position + queue_spacing() from runs r
            where r.status = 'pending' and r.caller = p_caller and not r.is_delayed and r.priority = p_priority
            order by r.queue_position desc limit 1
        )
    );
end $$;
