-- The tasks of the A2A protocol are runs that carry the id of their task's first run; only those are in the index.
create index runs_of_a2a_tasks on runs (assistant_id, thread_id, (metadata ->> 'a2a.task_start_id'), number desc)
    where metadata ? 'a2a.task_start_id';

-- What the protocol calls the state of a task whose last run this is. `p_is_last`: what the thread keeps is this run's;
-- `p_is_waiting`: the thread waits for an answer.
create function a2a_state(p_status text, p_is_closed boolean, p_is_last boolean, p_is_waiting boolean) returns text
language sql immutable parallel safe
as $$
    select case
        when p_status = 'pending' then 'submitted'
        when p_status = 'running' then 'working'
        when p_status in ('error', 'timeout') then 'failed'
        when p_status = 'interrupted' or p_is_closed then 'canceled'
        when p_is_last and p_is_waiting then 'input-required'
        else 'completed'
    end
$$;
