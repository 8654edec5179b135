-- Long values in pieces (`pieces.py`).

-- name: store_pieces
-- The locks keep `delete_unused_pieces` out until the runs that need the pieces are committed. They are taken before the first
-- row is written.
with locked as materialized (
    select pg_advisory_xact_lock_shared(:lock_class::int, lock) from unnest(:locks::int[]) as lock
)
insert into run_pieces (scope, digest, data)
select x.scope, x.digest, x.data
from unnest(:scopes::uuid[], :digests::uuid[], :data::text[]) as x (scope, digest, data)
where (select count(*) from locked) > 0
on conflict do nothing

-- name: store_piece_users
insert into piece_users (workspace_id, run_id, scope)
select :workspace_id, x.run_id, x.scope from unnest(:run_ids::uuid[], :scopes::uuid[]) as x (run_id, scope)
on conflict do nothing

-- name: find_stale_scopes
select distinct scope from stale_scopes limit :limit::int

-- name: lock_scopes
-- Whether no batch is writing to these scopes.
select pg_try_advisory_xact_lock(:lock_class::int, :lock::int)

-- name: delete_unused_pieces
-- A value in pieces begins with \x02, the scope (32 digits) and its length (10 digits); its parts follow. A part that is a
-- list holds references to pieces.
with cleared as (
    delete from stale_scopes where scope = any(:scopes::uuid[])
),
used as materialized (
    select distinct u.scope, ref.digest::uuid as digest
    from piece_users u
    join runs r on r.workspace_id = u.workspace_id and r.id = u.run_id
    cross join lateral unnest(array[r.inputs, r.outputs]) as v (stored)
    cross join lateral (
        select part from json_array_elements(
            case when left(v.stored, 1) = e'\x02' and substr(v.stored, 2, 32)::uuid = u.scope
                 then substr(v.stored, 44)::json else '[]' end
        ) as part
        where json_typeof(part) = 'array'
    ) l
    cross join lateral json_array_elements_text(l.part) as ref (digest)
    where u.scope = any(:scopes::uuid[])
)
delete from run_pieces p
where p.scope = any(:scopes::uuid[])
  and not exists (select from used where used.scope = p.scope and used.digest = p.digest)
