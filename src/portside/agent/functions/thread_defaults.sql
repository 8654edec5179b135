-- The lifetime of threads. `threads` uses these functions in defaults and in an index.

create or replace function default_ttl_minutes() returns double precision
language plpgsql stable set search_path from current as $$
begin
    return (select ttl_minutes from thread_lifetime);
end $$;

create or replace function default_ttl_strategy() returns text
language plpgsql stable set search_path from current as $$
begin
    return (select strategy from thread_lifetime);
end $$;

-- Declared immutable, as an index requires. It is: an interval of seconds does not depend on the time zone.
create or replace function thread_expiry(p_updated_at timestamptz, p_ttl_minutes double precision) returns timestamptz
language sql immutable as 'select p_updated_at + make_interval(secs => p_ttl_minutes * 60)';
