-- How long an idempotency key identifies the run that it was made with.
create or replace function run_key_lifetime() returns interval
language sql immutable
return interval '24 hours';

-- When the thread of a stateless run may be deleted: not while a client may wait for the result or repeat the request.
create or replace function thread_kept_until(p_run runs) returns timestamptz
language sql stable
return case
    when p_run.request_key is null then now() + interval '1 minute'
    else greatest(now() + interval '1 minute', p_run.created_at + run_key_lifetime())
end;
