-- name: upsert_system_assistant
-- plain: description (from the graph's own source)
-- One assistant per graph, created at every start unless it exists; clients' changes stay. A missing version is written as
-- well: a process of an older release may have created the assistant after the table of versions was created.
with made as (
    insert into assistants (assistant_id, graph_id, name, description, metadata)
    values (:assistant_id, :graph_id, :graph_id, :description, '{"created_by": "system"}')
    on conflict (assistant_id) do update set description = coalesce(assistants.description, excluded.description)
    returning assistant_id, version, graph_id, name, description, config, context, metadata
)
insert into assistant_versions (assistant_id, version, graph_id, name, description, config, context, metadata)
select assistant_id, version, graph_id, name, description, config, context, metadata from made
on conflict (assistant_id, version) do update
set description = coalesce(assistant_versions.description, excluded.description)

-- name: insert_assistant
-- encrypted: config as assistant.config, context as assistant.context, metadata as assistant.metadata
-- row: assistant_id = assistant_id
-- plain: name, description (labels that people search and sort by)
-- The update changes nothing: it makes the statement return an existing assistant, locked, instead of no row. `xmax` is 0
-- on a row that was just inserted.
with made as (
    insert into assistants (assistant_id, graph_id, name, description, config, context, metadata)
    values (:assistant_id, :graph_id, :name, :description, :config, :context, :metadata)
    on conflict (assistant_id) do update set assistant_id = excluded.assistant_id
    returning assistant_id, graph_id, name, description, config, context, metadata, version, created_at, updated_at,
              xmax::text = '0' as is_new
), versioned as (
    insert into assistant_versions (assistant_id, version, graph_id, name, description, config, context, metadata)
    select assistant_id, version, graph_id, name, description, config, context, metadata from made where is_new
)
select assistant_id, graph_id, name, description, config, context, metadata, version, created_at, updated_at, is_new
from made

-- name: get_assistant
-- replaceable: assistants
select assistant_id, graph_id, name, description, config, context, metadata, version, created_at, updated_at
from assistants where assistant_id = :assistant_id

-- name: patch_assistant
-- encrypted: config as assistant.config, context as assistant.context, metadata as assistant.metadata
-- row: assistant_id = assistant_id
-- plain: name, description (labels that people search and sort by)
-- `configurable` of the config and the context are two names of one field, so the first is written from the second. A
-- patch that waited for another one's lock sees that one's row, and so assigns the next version.
with changed as (
    update assistants set
        graph_id = coalesce(:graph_id::text, graph_id),
        name = coalesce(:name, name),
        description = coalesce(:description, description),
        context = coalesce(:context::jsonb, context),
        config = (coalesce(:config::jsonb, config) - 'configurable') || case
            when coalesce(:context::jsonb, context) = '{}' then '{}'
            else jsonb_build_object('configurable', coalesce(:context::jsonb, context)) end,
        metadata = metadata || coalesce(:metadata::jsonb, '{}'),
        version = last_version + 1,
        last_version = last_version + 1,
        updated_at = clock_timestamp()
    where assistant_id = :assistant_id
    returning assistant_id, graph_id, name, description, config, context, metadata, version, created_at, updated_at
), versioned as (
    insert into assistant_versions (
        assistant_id, version, graph_id, name, description, config, context, metadata, created_at
    )
    select assistant_id, version, graph_id, name, description, config, context, metadata, updated_at from changed
)
select assistant_id, graph_id, name, description, config, context, metadata, version, created_at, updated_at
from changed

-- name: set_latest_assistant_version
-- The assistant's row repeats its current version: a restored one is copied back into it.
update assistants a set
    graph_id = v.graph_id, name = v.name, description = v.description, config = v.config, context = v.context,
    metadata = v.metadata, version = v.version, updated_at = clock_timestamp()
from assistant_versions v
where a.assistant_id = :assistant_id and v.assistant_id = a.assistant_id and v.version = :version
returning a.assistant_id, a.graph_id, a.name, a.description, a.config, a.context, a.metadata, a.version,
          a.created_at, a.updated_at

-- name: list_assistant_versions
-- searched: metadata as assistant.metadata
-- replaceable: assistant_versions
-- undecryptable: mark
select assistant_id, version, graph_id, name, description, config, context, metadata, created_at
from assistant_versions
where assistant_id = :assistant_id and (:metadata::jsonb is null or metadata @> :metadata)
order by version desc limit :limit offset :offset

-- name: delete_assistant
-- Versions and crons are deleted with the assistant, and on request the threads of its runs, as far as the caller may
-- delete them. Threads are locked in the order of their ids, as everywhere.
with gone as (
    delete from assistants where assistant_id = :assistant_id returning assistant_id
), its_threads as (
    select t.thread_id from threads t
    where :delete_threads::boolean and exists (select from gone)
        and t.metadata @> jsonb_build_object('assistant_id', :assistant_id::uuid::text)
        and (:access::jsonb is null or matches_access(t.metadata, :access))
    order by t.thread_id for update
), gone_threads as (
    delete from threads where thread_id in (select thread_id from its_threads) returning thread_id
)
select array(select thread_id from gone_threads) as thread_ids from gone

-- name: search_assistants
-- searched: metadata as assistant.metadata
-- plain: name (a label that people search by)
-- replaceable: assistants
-- undecryptable: mark
-- `name` is a `like` pattern. Only the requested order remains once the parameters are known, so an index can serve it;
-- names are compared without case, and the id decides between equal ones.
select assistant_id, graph_id, name, description, config, context, metadata, version, created_at, updated_at
from assistants
where (:graph_id::text is null or graph_id = :graph_id)
  and (:name::text is null or lower(name) like lower(:name))
  and (:metadata::jsonb is null or metadata @> :metadata)
  and (:access::jsonb is null or matches_access(metadata, :access))
order by
    case when :order::text = 'created_at asc' then created_at when :order = 'updated_at asc' then updated_at end,
    case when :order = 'created_at desc' then created_at when :order = 'updated_at desc' then updated_at end desc,
    case when :order = 'name asc' then lower(name) when :order = 'graph_id asc' then graph_id end,
    case when :order = 'name desc' then lower(name) when :order = 'graph_id desc' then graph_id end desc,
    case when :order = 'assistant_id desc' then assistant_id end desc,
    assistant_id
limit :limit offset :offset

-- name: count_assistants
-- searched: metadata as assistant.metadata
-- plain: name (a label that people search by)
select count(*) from assistants
where (:graph_id::text is null or graph_id = :graph_id)
  and (:name::text is null or lower(name) like lower(:name))
  and (:metadata::jsonb is null or metadata @> :metadata)
  and (:access::jsonb is null or matches_access(metadata, :access))
