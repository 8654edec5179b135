-- Feedback as readers find it: its JSON text stays as it came, what is filtered by is read out of it.
create view readable_feedback as
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
cross join lateral (select readable_json(f.body) as doc) d;

create index feedback_by_time on feedback (workspace_id, modified_at);

-- Whoever has the id of a token may write one piece of feedback until it expires.
create table feedback_tokens (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    run_id uuid not null,
    key text not null,
    config jsonb,
    feedback_id uuid not null,
    expires_at timestamptz not null,
    created_at timestamptz not null default now()
);

create index feedback_tokens_of_run on feedback_tokens (workspace_id, run_id, created_at);
