-- name: list_tools
-- A tool for each name of an assistant, under a name of its own that tools may have. Who comes first keeps what it is
-- called: an assistant that is made later under the same name is no tool, and one whose name only looks the same when it
-- is written as a tool's is told apart by its id. Assistants that the server makes of its graphs are there for everybody.
with visible as (
    select distinct on (name) assistant_id, name, description, created_at, updated_at
    from assistants
    where (fits(metadata, :access) and metadata @> :metadata) or assistant_id = any(:own::uuid[])
    order by name, created_at, assistant_id
), fitting as (
    select *, case when name ~ '^[A-Za-z0-9_-]{1,64}$' then name else
        coalesce(nullif(left(trim(both '_' from regexp_replace(name, '[^A-Za-z0-9_-]+', '_', 'g')), 64), ''), 'agent')
    end as plain
    from visible
), placed as (
    select *, row_number() over (partition by plain order by plain <> name, created_at, assistant_id) as place
    from fitting
), named as (
    select distinct on (tool) *
    from (
        select *, (case when place = 1 then plain else left(plain, 55) || '_' || left(assistant_id::text, 8) end)
            collate "C" as tool
        from placed
    ) tools
    order by tool, place
)
select tool, assistant_id, name as title, description, updated_at
from named
where tool > :after::text collate "C" and (:tool::text is null or tool = :tool)
order by tool
limit :limit
