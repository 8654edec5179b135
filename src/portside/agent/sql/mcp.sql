-- name: list_tools
-- searched: metadata as assistant.metadata
-- plain: graphs (names of graphs)
-- One tool for each assistant name, under a name that the protocol allows. Of assistants with the same name only the
-- first is a tool. If two names become the same tool name, the later one gets its id as a suffix. The assistants of the
-- server's own graphs are visible to every caller. An assistant of a graph that a later revision removed is no tool.
with visible as (
    select distinct on (name) assistant_id, name, description, created_at, updated_at
    from assistants
    where ((matches_access(metadata, :access) and metadata @> :metadata) or assistant_id = any(:own::uuid[]))
        and graph_id = any(:graphs::text[])
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
