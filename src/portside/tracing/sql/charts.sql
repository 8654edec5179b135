-- name: create_section
insert into chart_sections (id, workspace_id, title, description, index)
values (:id, :workspace_id, :title, :description, coalesce(
    :index::int, (select coalesce(max(index) + 1, 0) from chart_sections where workspace_id = :workspace_id)
))

-- name: sections
select s.id, s.title, s.description, s.index, s.created_at,
       (select count(*) from charts c where c.section_id = s.id) as chart_count
from chart_sections s
where s.workspace_id = :workspace_id and (:ids::uuid[] is null or s.id = any(:ids::uuid[]))
  and (:after_index::int is null or s.index > :after_index::int)
order by s.index, s.id
limit :limit::int

-- name: update_section
-- Null leaves a column unchanged.
update chart_sections set
    title = coalesce(:title::text, title), description = coalesce(:description::text, description),
    index = coalesce(:index::int, index)
where workspace_id = :workspace_id and id = :section_id

-- name: delete_section
delete from chart_sections where workspace_id = :workspace_id and id = :section_id

-- name: create_chart
-- By default a chart becomes the last one of its section.
insert into charts (
    id, workspace_id, section_id, title, description, index, chart_type, series, common_filters, metadata
)
values (
    :id, :workspace_id, :section_id, :title, :description,
    coalesce(:index::int, (select coalesce(max(index) + 1, 0) from charts where section_id = :section_id)),
    :chart_type, :series::jsonb, :common_filters::jsonb, :metadata::jsonb
)

-- name: charts
select id, section_id, title, description, index, chart_type, series, common_filters, metadata
from charts
where workspace_id = :workspace_id and (:ids::uuid[] is null or id = any(:ids::uuid[]))
  and (:sections::uuid[] is null or section_id = any(:sections::uuid[]))
order by section_id, index, id

-- name: update_chart
-- Null leaves a column unchanged.
update charts set
    section_id = coalesce(:section_id::uuid, section_id), title = coalesce(:title::text, title),
    description = coalesce(:description::text, description), index = coalesce(:index::int, index),
    chart_type = coalesce(:chart_type::text, chart_type), series = coalesce(:series::jsonb, series),
    common_filters = coalesce(:common_filters::jsonb, common_filters), metadata = coalesce(:metadata::jsonb, metadata)
where workspace_id = :workspace_id and id = :chart_id

-- name: delete_chart
delete from charts where workspace_id = :workspace_id and id = :chart_id
