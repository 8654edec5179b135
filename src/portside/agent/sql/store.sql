-- Namespaces come and go as text, their labels joined by periods, which no label holds; '' is the empty one. What is
-- under a prefix is the range from the prefix to `beyond`: its last label with the lowest character there is added, or,
-- for the empty prefix, the highest character there is.

-- name: write_items
-- One batch of puts and deletes (a null value), each item once. Batches of more than one item wait for their turn, at 256
-- gates in order: whatever they write, no two hold what the other one needs. An expired item is gone, so what is put in
-- its place is created anew.
with given as (
    select string_to_array(g.namespace, '.') as namespace, g.key, g.value::jsonb as value, g.ttl, g.fields
    from unnest(:namespaces::text[], :keys::text[], :contents::text[], :ttls::float8[], :fields::text[])
        as g (namespace, key, value, ttl, fields)
), turn as materialized (
    select pg_advisory_xact_lock(hashtext('portside.store_items'), b.bucket)
    from (
        select distinct hashtext(array_to_string(g.namespace, '.') || '.' || g.key) & 255 as bucket from given g
        where (select count(*) from given) > 1
        order by bucket
    ) b
), deleted as (
    delete from store_items s using given g
    where g.value is null and s.namespace = g.namespace and s.key = g.key and (select count(*) from turn) >= 0
)
insert into store_items as s (namespace, key, value, ttl_minutes, expires_at, index_fields)
select g.namespace, g.key, g.value, g.ttl, now() + g.ttl * interval '1 minute', g.fields::jsonb
from given g, (select count(*) from turn) as after_that
where g.value is not null
order by g.namespace, g.key
on conflict (namespace, key) do update set
    value = excluded.value,
    created_at = case when s.expires_at <= now() then now() else s.created_at end,
    updated_at = now(),
    ttl_minutes = excluded.ttl_minutes,
    expires_at = excluded.expires_at,
    revision = s.revision + 1,
    index_fields = excluded.index_fields,
    indexed_by = null

-- name: write_indexed_items
-- The same with the vectors of the items, in the same statement: an item is never there without them. `owners` says which
-- of the items, by its place in the batch, each vector is of. Vectors that an item had more of are dropped.
with given as (
    select string_to_array(g.namespace, '.') as namespace, g.key, g.value::jsonb as value, g.ttl, g.fields, g.n
    from unnest(:namespaces::text[], :keys::text[], :contents::text[], :ttls::float8[], :fields::text[])
        with ordinality as g (namespace, key, value, ttl, fields, n)
), turn as materialized (
    select pg_advisory_xact_lock(hashtext('portside.store_items'), b.bucket)
    from (
        select distinct hashtext(array_to_string(g.namespace, '.') || '.' || g.key) & 255 as bucket from given g
        where (select count(*) from given) > 1
        order by bucket
    ) b
), deleted as (
    delete from store_items s using given g
    where g.value is null and s.namespace = g.namespace and s.key = g.key and (select count(*) from turn) >= 0
), stored as (
    insert into store_items as s (namespace, key, value, ttl_minutes, expires_at, index_fields, indexed_by)
    select
        g.namespace, g.key, g.value, g.ttl, now() + g.ttl * interval '1 minute', g.fields::jsonb,
        :generation::int
    from given g, (select count(*) from turn) as after_that
    where g.value is not null
    order by g.namespace, g.key
    on conflict (namespace, key) do update set
        value = excluded.value,
        created_at = case when s.expires_at <= now() then now() else s.created_at end,
        updated_at = now(),
        ttl_minutes = excluded.ttl_minutes,
        expires_at = excluded.expires_at,
        revision = s.revision + 1,
        index_fields = excluded.index_fields,
        indexed_by = excluded.indexed_by
    returning s.id, s.namespace, s.key, s.revision
), vectors as (
    select s.id, s.revision, v.place, v.embedding
    from unnest(:owners::int[], :places::int[], :embeddings::text[]) as v (owner, place, embedding)
    join given g on g.n = v.owner
    join stored s using (namespace, key)
), dropped as (
    delete from store_vectors v using stored s
    where v.item_id = s.id and v.place >= (select count(*) from vectors n where n.id = s.id)
)
insert into store_vectors as v (item_id, place, revision, embedding)
select id, place, revision, embedding::vector from vectors
on conflict (item_id, place) do update set revision = excluded.revision, embedding = excluded.embedding

-- name: get_items
-- Reading prolongs an item's life where that is asked for; not oftener than every hundredth of it, which spares a busy
-- item a write for each read. A row that somebody else holds is being written, so it is skipped.
with found as (
    select a.place, a.refresh, s.*
    from unnest(:namespaces::text[], :keys::text[], :refreshes::boolean[]) with ordinality
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
select place, namespace, key, value::text as value, created_at, updated_at from found

-- name: search_items
-- Last written first. Under a prefix the range is read and sorted (`offset 0` keeps it so: per user, the common case, it
-- holds a few items of many); only a listing of everything walks the index of updates. A filter is given in three parts,
-- the cheap ones first: what the value contains, a JSON path, and the whole filter where these two cannot say it all.
-- What is asked is materialized, or its parts would be parsed again for each row.
with asked as materialized (
    select
        a.place, a.prefix = '' as everywhere, a.count, a.skipped, a.refresh,
        string_to_array(a.prefix, '.') as prefix, string_to_array(a.beyond, '.') as beyond,
        a.contains::jsonb as contains, a.path::jsonpath as path, a.operands::jsonb as operands, a.filter::jsonb as filter
    from unnest(
        :prefixes::text[], :beyonds::text[], :contains::text[], :paths::text[], :operands::text[], :filters::text[],
        :limits::bigint[], :offsets::bigint[], :refreshes::boolean[]
    ) with ordinality
        as a (prefix, beyond, contains, path, operands, filter, count, skipped, refresh, place)
), found as (
    select a.place, a.refresh, hit.*
    from asked a
    cross join lateral (
        (
            select w.* from (
                select s.* from store_items s
                where not a.everywhere and s.namespace >= a.prefix and s.namespace < a.beyond
                  and (s.expires_at is null or s.expires_at > now())
                  and store_fits(s.value, a.contains, a.path, a.operands, a.filter)
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
              and store_fits(s.value, a.contains, a.path, a.operands, a.filter)
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
select place, namespace, key, value::text as value, created_at, updated_at, null::float8 as score
from found
order by place, updated_at desc, id desc

-- name: search_items_by_meaning
-- Exact: every vector under the prefix is compared (docs/why/store.md), and an item is as close as its closest vector.
-- Comparing comes last, for only vectors of this generation have the dimensions of the question. A vector of length zero
-- points nowhere, it is as far as one at a right angle.
with asked as materialized (
    select
        a.place, a.count, a.skipped, a.refresh,
        string_to_array(a.prefix, '.') as prefix, string_to_array(a.beyond, '.') as beyond,
        a.contains::jsonb as contains, a.path::jsonpath as path, a.operands::jsonb as operands, a.filter::jsonb as filter,
        a.embedding::vector as embedding
    from unnest(
        :prefixes::text[], :beyonds::text[], :contains::text[], :paths::text[], :operands::text[], :filters::text[],
        :limits::bigint[], :offsets::bigint[], :refreshes::boolean[], :embeddings::text[]
    ) with ordinality
        as a (prefix, beyond, contains, path, operands, filter, count, skipped, refresh, embedding, place)
), found as (
    select a.place, a.refresh, closest.distance, s.*
    from asked a
    cross join lateral (
        select v.item_id, coalesce(nullif(min(v.embedding <=> a.embedding), 'NaN'), 1) as distance
        from (
            select s.id, s.revision from store_items s
            where s.namespace >= a.prefix and s.namespace < a.beyond
              and s.indexed_by = :generation::int
              and (s.expires_at is null or s.expires_at > now())
              and store_fits(s.value, a.contains, a.path, a.operands, a.filter)
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
select place, namespace, key, value::text as value, created_at, updated_at, 1 - distance as score
from found
order by place, distance, id desc

-- name: walk_namespaces
-- From each namespace, cut to the depth, the index leads to the next one: the cost is that of the namespaces returned,
-- not of the items in them.
select a.place, n.namespace
from unnest(:prefixes::text[], :beyonds::text[], :depths::int[], :limits::bigint[], :offsets::bigint[]) with ordinality
    as a (prefix, beyond, depth, count, skipped, place)
cross join lateral (
    with recursive walk (namespace) as (
        (
            select s.namespace[1:a.depth] from store_items s
            where s.namespace >= string_to_array(a.prefix, '.') and s.namespace < string_to_array(a.beyond, '.')
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
              and s.namespace < string_to_array(a.beyond, '.')
              and (s.expires_at is null or s.expires_at > now())
            order by s.namespace limit 1
        ) later
    )
    select w.namespace from walk w limit a.count offset a.skipped
) n
order by a.place, n.namespace

-- name: match_namespaces
-- With wildcards or a suffix every namespace of the range is looked at, once however many items it has. A pattern is
-- given by the places it fixes, counted from the start or, from zero down, from the end.
select a.place, n.namespace
from unnest(
    :prefixes::text[], :beyonds::text[], :depths::int[], :limits::bigint[], :offsets::bigint[],
    :fixed_places::text[], :fixed_labels::text[], :least_depths::int[]
) with ordinality as a (prefix, beyond, depth, count, skipped, places, labels, least_depth, place)
cross join lateral (
    select distinct each.namespace[1:a.depth] as namespace
    from (
        select distinct s.namespace from store_items s
        where s.namespace >= string_to_array(a.prefix, '.') and s.namespace < string_to_array(a.beyond, '.')
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
delete from store_items where id in (
    select id from store_items where expires_at <= now() order by expires_at limit :limit for update skip locked
)

-- name: lock_search_index
-- Whoever opens the search index does it alone: Postgres lets two that make the same extension at once run into each other.
select pg_advisory_xact_lock(hashtext('portside.store_indexes'))

-- name: find_vector_type
select to_regtype('vector') is not null

-- name: install_vector
create extension if not exists vector schema public

-- name: make_store_vectors
select make_store_vectors()

-- name: open_generation
-- The latest generation is used when it is of this configuration; an older one never is again, for its vectors are gone.
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
-- One process at a time embeds items anew; the lock ends with the transaction.
select pg_try_advisory_xact_lock(hashtext('portside.store_items'))

-- name: list_items_to_index
-- Items of an older generation, or of none; after a place, to go past those that could not be embedded.
select id, revision, value::text as value, index_fields, coalesce(indexed_by, 0) as indexed_by from store_items
where coalesce(indexed_by, 0) < :generation
  and (coalesce(indexed_by, 0), id) > (:after_generation::int, :after_id::bigint)
  and (expires_at is null or expires_at > now())
order by coalesce(indexed_by, 0), id
limit :limit

-- name: index_items
-- Give items their vectors, unless they were or are being written. The revision moves on, so that no older vector counts.
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
    where v.item_id = i.id and v.place >= (select count(*) from vectors n where n.id = i.id)
)
insert into store_vectors as v (item_id, place, revision, embedding)
select id, place, revision, embedding::vector from vectors
on conflict (item_id, place) do update set revision = excluded.revision, embedding = excluded.embedding
