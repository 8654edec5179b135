-- Whether a thread has runs that are not over. Volatile, so that it sees what the statement that it is part of did
-- before: whoever ends a run asks whether another one of its thread may begin.
create function has_runs(p_thread_id uuid) returns boolean language plpgsql volatile as $$
begin
    return coalesce((select t.active_runs > 0 from threads t where t.thread_id = p_thread_id), false);
end $$;
