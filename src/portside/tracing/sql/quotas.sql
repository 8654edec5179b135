-- name: put_usage_limit
insert into usage_limits as u (id, workspace_id, limit_type, limit_value)
values (:id, :workspace_id, :limit_type, :limit_value)
on conflict (workspace_id, limit_type) do update set limit_value = excluded.limit_value, updated_at = now()

-- name: usage_limits
select id, workspace_id as tenant_id, limit_type, limit_value, created_at, updated_at from usage_limits
where workspace_id = :workspace_id
order by limit_type

-- name: delete_usage_limit
delete from usage_limits where workspace_id = :workspace_id and id = :id

-- name: limits_reached
-- Stops counting at the limits. Months are in UTC.
with month as (select date_trunc('month', now() at time zone 'UTC') at time zone 'UTC' as start)
select u.limit_type
from usage_limits u, month m
where u.workspace_id = :workspace_id and u.limit_value <= case u.limit_type
    when 'monthly_traces' then (
        select count(*) from (
            select from traces t
            where t.workspace_id = u.workspace_id and t.received_at >= m.start and not t.is_imported
            limit u.limit_value
        ) received
    )
    else (
        select count(*) from (
            (select from traces t
             where t.workspace_id = u.workspace_id and t.extended_at >= m.start and not t.is_imported
             limit u.limit_value)
            union all
            (select from traces t
             where t.workspace_id = u.workspace_id and t.received_at >= m.start and t.tier = 'longlived'
               and t.extended_at is null and not t.is_imported
             limit u.limit_value)
        ) longlived
    )
end
