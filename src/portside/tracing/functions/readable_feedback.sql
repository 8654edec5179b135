-- Feedback as readers see it: its JSON text unchanged, and the values that filters use extracted from it.
create or replace view readable_feedback as
select f.workspace_id, f.id, f.run_id, coalesce(f.trace_id, r.trace_id) as trace_id, f.key, f.body, f.modified_at,
       coalesce(r.project_id::text, d.doc ->> 'session_id') as session_id,
       d.doc -> 'feedback_source' ->> 'type' as source,
       d.doc -> 'feedback_source' ->> 'user_id' as user_id,
       case jsonb_typeof(d.doc -> 'score')
           when 'number' then least(greatest((d.doc ->> 'score')::numeric, -1e300), 1e300)::float8
           when 'boolean' then ((d.doc ->> 'score')::boolean)::int::float8
       end as score,
       case when jsonb_typeof(d.doc -> 'value') = 'string' then d.doc ->> 'value' end as value,
       coalesce(d.doc ->> 'comment', '') <> '' as has_comment
from feedback f
left join runs r on r.workspace_id = f.workspace_id and r.id = f.run_id
cross join lateral (select parse_json(f.body) as doc) d;
