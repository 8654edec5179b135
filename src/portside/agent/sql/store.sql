-- Namespaces are passed as text, their labels joined by periods, which no label contains; '' is the empty one. The
-- namespaces under a prefix are the range from the prefix to `upper_bound`, which is the prefix with the lowest character
-- appended or, for the empty prefix, the highest character.

-- name: write_items
-- encrypted: contents[] as store.value
-- row: namespace = namespaces, key = keys
-- plain: fields (names of fields)
select from put_store_items(
    :namespaces::text[], :keys::text[], :contents::text[], :ttls::float8[], :fields::text[], null
)

-- name: write_indexed_items
-- encrypted: contents[] as store.value
-- row: namespace = namespaces, key = keys
-- plain: fields (names of fields)
-- plain: embeddings (vectors, which searches compare)
-- Like `write_items`, with the vectors of the items: both are written in one statement, so that no item is ever without
-- its vectors. `owners` gives the item of each vector, by its position in the batch. Surplus vectors are deleted. Without
-- a search index there is no table of vectors, so this cannot be the only statement.
with stored as materialized (
    select * from put_store_items(
        :namespaces::text[], :keys::text[], :contents::text[], :ttls::float8[], :fields::text[], :generation::int
    )
), vectors as (
    select s.id, s.revision, v.place, v.embedding
    from unnest(:owners::int[], :places::int[], :embeddings::text[]) as v (owner, place, embedding)
    join stored s on s.batch_index = v.owner
), dropped as (
    delete from store_vectors v using stored s
    where v.item_id = s.id and v.vector_index >= (select count(*) from vectors n where n.id = s.id)
)
insert into store_vectors as v (item_id, vector_index, revision, embedding)
select id, place, revision, embedding::vector from vectors
on conflict (item_id, vector_index) do update set revision = excluded.revision, embedding = excluded.embedding

-- name: get_items
-- replaceable: items
-- Reading renews the lifetime of an item on request, but at most once in a hundredth of the lifetime, so that a busy item
-- is not written with each read. A row that is locked is being written, so it is skipped. The arrays are selected as in
-- `read_states`: the statement is planned once.
with found as (
    select a.place, a.refresh, s.*
    from unnest((select :namespaces::text[]), (select :keys::text[]), (select :refreshes::boolean[])) with ordinality
        as a (namespace, key, refresh, place)
    join store_items s on s.namespace = string_to_array(a.namespace, '.') and s.key = a.key
    where s.expires_at is null or s.expires_at > now()
), due as (
    select s.id from store_items s
    where s.id in (select f.id from found f where f.refresh and f.expires_at < now() + f.ttl_minutes * interval '59.4 s')
    for update skip locked
), refreshed as (
    update store_items s set expires_at = now() + s.ttl_minutes * interval '1 minute' from due where s.id = due.id
)
select place, namespace, key, value::text as value, created_at, updated_at, ttl_minutes, expires_at from found

-- name: search_items
-- plain: contains, paths, operands, filters (parts of a filter that the store has already checked as a whole)
-- replaceable: items
-- undecryptable: mark
-- Last written first. Under a prefix the range is read and sorted (`offset 0` keeps the planner from merging the queries:
-- the common prefix is a user, with few items of many); only a listing of everything walks the index of updates. A filter
-- has three parts, the cheap ones first: containment, a JSON path, and the whole filter if these cannot express it. The
-- requests are materialized, or their parts would be parsed again for each row.
with requested as materialized (
    select
        a.place, a.prefix = '' as everywhere, a.count, a.skipped, a.refresh,
        string_to_array(a.prefix, '.') as prefix, string_to_array(a.upper_bound, '.') as upper_bound,
        a.contains::jsonb as contains, a.path::jsonpath as path, a.operands::jsonb as operands, a.filter::jsonb as filter
    from unnest(
        :prefixes::text[], :upper_bounds::text[], :contains::text[], :paths::text[], :operands::text[], :filters::text[],
        :limits::bigint[], :offsets::bigint[], :refreshes::boolean[]
    ) with ordinality
        as a (prefix, upper_bound, contains, path, operands, filter, count, skipped, refresh, place)
), found as (
    select a.place, a.refresh, hit.*
    from requested a
    cross join lateral (
        (
            select w.* from (
                select s.* from store_items s
                where not a.everywhere and s.namespace >= a.prefix and s.namespace < a.upper_bound
                  and (s.expires_at is null or s.expires_at > now())
                  and store_matches_filter(s.value, a.contains, a.path, a.operands, a.filter)
                offset 0
            ) w
            order by w.updated_at desc, w.id desc
            limit a.count offset a.skipped
        )
        union all
        (
            select s.* from store_items s
            where a.everywhere
              and (s.expires_at is null or s.expires_at > now())
              and store_matches_filter(s.value, a.contains, a.path, a.operands, a.filter)
            order by s.updated_at desc, s.id desc
            limit a.count offset a.skipped
        )
    ) hit
), due as (
    select s.id from store_items s
    where s.id in (select f.id from found f where f.refresh and f.expires_at < now() + f.ttl_minutes * interval '59.4 s')
    for update skip locked
), refreshed as (
    update store_items s set expires_at = now() + s.ttl_minutes * interval '1 minute' from due where s.id = due.id
)
select place, namespace, key, value::text as value, created_at, updated_at, ttl_minutes, expires_at, null::float8 as score
from found
order by place, updated_at desc, id desc

-- name: search_items_by_meaning
-- plain: contains, paths, operands, filters (parts of a filter that the store has already checked as a whole)
-- plain: embeddings (vectors, which searches compare)
-- replaceable: items
-- undecryptable: mark
-- Exact: every vector under the prefix is compared (docs/why/store.md), and an item is as close as its closest vector.
-- The comparison comes last, because only vectors of this generation have the dimensions of the query. A vector of length
-- zero has no direction and counts as orthogonal.
with requested as materialized (
    select
        a.place, a.count, a.skipped, a.refresh,
        string_to_array(a.prefix, '.') as prefix, string_to_array(a.upper_bound, '.') as upper_bound,
        a.contains::jsonb as contains, a.path::jsonpath as path, a.operands::jsonb as operands, a.filter::jsonb as filter,
        a.embedding::vector as embedding
    from unnest(
        :prefixes::text[], :upper_bounds::text[], :contains::text[], :paths::text[], :operands::text[], :filters::text[],
        :limits::bigint[], :offsets::bigint[], :refreshes::boolean[], :embeddings::text[]
    ) with ordinality
        as a (prefix, upper_bound, contains, path, operands, filter, count, skipped, refresh, embedding, place)
), found as (
    select a.place, a.refresh, closest.distance, s.*
    from requested a
    cross join lateral (
        select v.item_id, coalesce(nullif(min(v.embedding <=> a.embedding), 'NaN'), 1) as distance
        from (
            select s.id, s.revision from store_items s
            where s.namespace >= a.prefix and s.namespace < a.upper_bound
              and s.indexed_by = :generation::int
              and (s.expires_at is null or s.expires_at > now())
              and store_matches_filter(s.value, a.contains, a.path, a.operands, a.filter)
            offset 0
        ) w
        join store_vectors v on v.item_id = w.id and v.revision = w.revision
        group by v.item_id
        order by distance, v.item_id desc
        limit a.count offset a.skipped
    ) closest
    join store_items s on s.id = closest.item_id
), due as (
    select s.id from store_items s
    where s.id in (select f.id from found f where f.refresh and f.expires_at < now() + f.ttl_minutes * interval '59.4 s')
    for update skip locked
), refreshed as (
    update store_items s set expires_at = now() + s.ttl_minutes * interval '1 minute' from due where s.id = due.id
)
select place, namespace, key, value::text as value, created_at, updated_at, ttl_minutes, expires_at, 1 - distance as score
from found
order by place, distance, id desc

-- name: walk_namespaces
-- A loose index scan: from each namespace, cut to the depth, the index finds the next one. The cost depends on the number
-- of namespaces returned, not on the items in them.
select a.place, n.namespace
from unnest(:prefixes::text[], :upper_bounds::text[], :depths::int[], :limits::bigint[], :offsets::bigint[]) with ordinality
    as a (prefix, upper_bound, depth, count, skipped, place)
cross join lateral (
    with recursive walk (namespace) as (
        (
            select s.namespace[1:a.depth] from store_items s
            where s.namespace >= string_to_array(a.prefix, '.') and s.namespace < string_to_array(a.upper_bound, '.')
              and (s.expires_at is null or s.expires_at > now())
            order by s.namespace limit 1
        )
        union all
        select later.namespace
        from walk w
        cross join lateral (
            select s.namespace[1:a.depth] as namespace from store_items s
            where s.namespace >= case
                    when cardinality(w.namespace) = a.depth
                    then w.namespace[1:a.depth - 1] || (w.namespace[a.depth] || chr(1))
                    else w.namespace || ''::text
                end
              and s.namespace < string_to_array(a.upper_bound, '.')
              and (s.expires_at is null or s.expires_at > now())
            order by s.namespace limit 1
        ) later
    )
    select w.namespace from walk w limit a.count offset a.skipped
) n
order by a.place, n.namespace

-- name: match_namespaces
-- plain: fixed_labels, fixed_places (labels of namespaces)
-- With wildcards or a suffix every namespace of the range is compared, once however many items it has. A pattern is given
-- by the positions that it fixes, counted from 1 or, from 0 backwards, from the end.
select a.place, n.namespace
from unnest(
    :prefixes::text[], :upper_bounds::text[], :depths::int[], :limits::bigint[], :offsets::bigint[],
    :fixed_places::text[], :fixed_labels::text[], :least_depths::int[]
) with ordinality as a (prefix, upper_bound, depth, count, skipped, places, labels, least_depth, place)
cross join lateral (
    select distinct each.namespace[1:a.depth] as namespace
    from (
        select distinct s.namespace from store_items s
        where s.namespace >= string_to_array(a.prefix, '.') and s.namespace < string_to_array(a.upper_bound, '.')
          and (s.expires_at is null or s.expires_at > now())
        offset 0
    ) each
    where cardinality(each.namespace) >= a.least_depth
      and (
          select bool_and(
              each.namespace[p.place + case when p.place > 0 then 0 else cardinality(each.namespace) end] = p.label
          )
          from unnest(string_to_array(a.places, '.')::int[], string_to_array(a.labels, '.')) as p (place, label)
      ) is not false
    order by 1
    limit a.count offset a.skipped
) n
order by a.place, n.namespace

-- name: delete_expired_items
-- Several servers do this at once: each skips the rows that another one deletes.
delete from store_items where id in (
    select id from store_items where expires_at <= now() order by expires_at limit :limit for update skip locked
)

-- name: lock_search_index
-- One process at a time opens the search index: concurrent `create extension` statements fail.
select pg_advisory_xact_lock(hashtext('portside.store_indexes'))

-- name: find_vector_type
-- Whether the extension is installed where `search_path` finds its type. It may be in another schema.
select to_regtype('vector') is not null

-- name: install_vector
create extension if not exists vector schema public

-- name: make_store_vectors
select make_store_vectors()

-- name: open_generation
-- plain: fields (names of fields)
-- The latest generation is used if it is of this configuration; an older one never is, because its vectors are deleted.
with latest as (
    select * from store_indexes order by generation desc limit 1
), made as (
    insert into store_indexes (generation, embed, dims, fields)
    select coalesce((select generation from latest), 0) + 1, :embed, :dims, :fields::text[]
    where not exists (select from latest where embed = :embed and dims = :dims and fields = :fields::text[])
    returning generation
)
select coalesce((select generation from made), (select generation from latest))

-- name: claim_reindexing
-- One process at a time embeds items again; the lock ends with the transaction.
select pg_try_advisory_xact_lock(hashtext('portside.store_items'))

-- name: keep_transaction
-- Keeps a transaction that waits for embeddings from being ended as idle.
select true

-- name: list_items_to_index
-- undecryptable: mark
-- Items of an older generation or of none, after a position, to skip those that could not be embedded.
select id, namespace, key, revision, value::text as value, index_fields, coalesce(indexed_by, 0) as indexed_by from store_items
where coalesce(indexed_by, 0) < :generation
  and (coalesce(indexed_by, 0), id) > (:after_generation::int, :after_id::bigint)
  and (expires_at is null or expires_at > now())
order by coalesce(indexed_by, 0), id
limit :limit

-- name: index_items
-- plain: embeddings (vectors, which searches compare)
-- Write the vectors of items, except items that were or are being written. The revision is raised, so that no older
-- vector counts.
with given as (
    select s.id from unnest(:ids::bigint[], :revisions::bigint[]) as g (id, revision)
    join store_items s on s.id = g.id and s.revision = g.revision
    for update of s skip locked
), indexed as (
    update store_items s set indexed_by = :generation, revision = s.revision + 1
    from given g where s.id = g.id
    returning s.id, s.revision
), vectors as (
    select i.id, i.revision, v.place, v.embedding
    from unnest(:owners::bigint[], :places::int[], :embeddings::text[]) as v (owner, place, embedding)
    join indexed i on i.id = v.owner
), dropped as (
    delete from store_vectors v using indexed i
    where v.item_id = i.id and v.vector_index >= (select count(*) from vectors n where n.id = i.id)
)
insert into store_vectors as v (item_id, vector_index, revision, embedding)
select id, place, revision, embedding::vector from vectors
on conflict (item_id, vector_index) do update set revision = excluded.revision, embedding = excluded.embedding
