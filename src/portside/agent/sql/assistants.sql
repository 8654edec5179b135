-- name: upsert_system_assistant
-- One assistant per graph, made at every start; what people changed on it stays.
insert into assistants (assistant_id, graph_id, name, description, metadata)
values (:assistant_id, :graph_id, :graph_id, :description, '{"created_by": "system"}')
on conflict (assistant_id) do update set description = coalesce(assistants.description, excluded.description)

-- name: get_assistant
select assistant_id, graph_id, name, description, config, context, metadata, version, created_at, updated_at
from assistants where assistant_id = :assistant_id

-- name: search_assistants
select assistant_id, graph_id, name, description, config, context, metadata, version, created_at, updated_at
from assistants
where (:graph_id::text is null or graph_id = :graph_id)
  and (:name::text is null or position(lower(:name) in lower(name)) > 0)
  and (:metadata::jsonb is null or metadata @> :metadata)
order by created_at desc, assistant_id
limit :limit offset :offset

-- name: count_assistants
select count(*) from assistants
where (:graph_id::text is null or graph_id = :graph_id)
  and (:name::text is null or position(lower(:name) in lower(name)) > 0)
  and (:metadata::jsonb is null or metadata @> :metadata)
