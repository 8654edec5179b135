-- Every change of an assistant makes a version; any of them can be made the latest again.
-- `last_version` is the highest number ever given. It is kept on the assistant, whose row each change locks, because a
-- maximum over the versions would be read from a snapshot taken before that lock was granted.

create table assistant_versions (
    assistant_id uuid not null references assistants on delete cascade,
    version int not null,
    graph_id text not null,
    name text not null,
    description text,
    config jsonb not null,
    context jsonb not null,
    metadata jsonb not null,
    created_at timestamptz not null default now(),
    primary key (assistant_id, version)
);

insert into assistant_versions (
    assistant_id, version, graph_id, name, description, config, context, metadata, created_at
)
select assistant_id, version, graph_id, name, description, config, context, metadata, updated_at from assistants;

alter table assistants add column last_version int not null default 1;
update assistants set last_version = version where version > 1;

create index assistants_by_creation on assistants (created_at desc, assistant_id);
create index assistants_of_graph on assistants (graph_id, created_at desc, assistant_id);
create index assistants_by_metadata on assistants using gin (metadata jsonb_path_ops);

-- A part of a name is found by its trigrams. The extension comes with Postgres, but an operator may have left it out or
-- keep it where we do not see it; names are then searched one by one, which is slower and as true.
do $$
begin
    create extension if not exists pg_trgm;
    create index assistants_by_name on assistants using gin (lower(name) gin_trgm_ops);
exception
    when undefined_file or feature_not_supported or insufficient_privilege or undefined_object then
        raise notice 'names of assistants are searched without an index: %', sqlerrm;
end $$;
