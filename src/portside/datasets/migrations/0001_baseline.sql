-- Clients choose ids, so an id is unique only within its workspace.
create table datasets (
    workspace_id uuid not null references workspaces (id),
    id uuid not null,
    name text not null,
    description text,
    data_type text not null,
    extra jsonb,
    inputs_schema json,
    outputs_schema json,
    created_at timestamptz not null default now(),
    modified_at timestamptz not null default now(),
    primary key (workspace_id, id)
);

create unique index datasets_by_name on datasets (workspace_id, name);

-- A version is a time at which examples changed. The times of one dataset only increase.
create table dataset_versions (
    workspace_id uuid not null,
    dataset_id uuid not null,
    as_of timestamptz not null,
    primary key (workspace_id, dataset_id, as_of),
    foreign key (workspace_id, dataset_id) references datasets (workspace_id, id) on delete cascade
);

create table dataset_tags (
    workspace_id uuid not null,
    dataset_id uuid not null,
    tag text not null,
    as_of timestamptz not null,
    primary key (workspace_id, dataset_id, tag),
    foreign key (workspace_id, dataset_id, as_of)
        references dataset_versions (workspace_id, dataset_id, as_of) on delete cascade
);

-- One row for each state of an example: it is valid from `since` until the next version that changes or removes it.
-- Inputs and outputs are stored as the JSON text that the client sent, which keeps the order of their keys. `position` is
-- the index in the request that created the example. `attachments` maps names to ids.
create table examples (
    workspace_id uuid not null,
    id uuid not null,
    since timestamptz not null,
    until timestamptz not null default 'infinity',
    dataset_id uuid not null,
    created_at timestamptz not null,
    position int not null,
    inputs json not null,
    outputs json,
    metadata jsonb not null,
    source_run_id uuid,
    attachments jsonb not null,
    primary key (workspace_id, id, since),
    foreign key (workspace_id, dataset_id) references datasets (workspace_id, id) on delete cascade
);

create unique index examples_at_present on examples (workspace_id, id) where until = 'infinity';
-- Lists of a dataset's examples are ordered by the last change; this index returns a page without sorting.
create index examples_in_order on examples (workspace_id, dataset_id, since desc, position, id);

-- In a table of their own, because most states of an example have the same attachments.
create table example_attachments (
    id uuid primary key,
    workspace_id uuid not null,
    dataset_id uuid not null,
    mime_type text not null,
    data bytea not null,
    foreign key (workspace_id, dataset_id) references datasets (workspace_id, id) on delete cascade
);

create index example_attachments_of_dataset on example_attachments (workspace_id, dataset_id);

-- A token gives read access to the dataset and its examples. A dataset that is shared again keeps its token.
create table shared_datasets (
    share_token uuid primary key,
    workspace_id uuid not null,
    dataset_id uuid not null,
    unique (workspace_id, dataset_id),
    foreign key (workspace_id, dataset_id) references datasets (workspace_id, id) on delete cascade
);

-- Experiments that were compared with each other.
create table comparative_experiments (
    workspace_id uuid not null,
    id uuid not null,
    dataset_id uuid not null,
    name text,
    description text,
    extra jsonb,
    experiment_ids uuid[] not null,
    created_at timestamptz not null,
    modified_at timestamptz not null default now(),
    primary key (workspace_id, id),
    foreign key (workspace_id, dataset_id) references datasets (workspace_id, id) on delete cascade
);
