-- The state of an A2A task, from the last run of the task. `p_is_closed`: the client cancelled the task after the run.
-- `p_is_last`: the run is the last of its thread, so the thread's values are its values. `p_is_waiting`: the thread
-- waits for an answer.
create or replace function a2a_state(p_status text, p_is_closed boolean, p_is_last boolean, p_is_waiting boolean) returns text
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
