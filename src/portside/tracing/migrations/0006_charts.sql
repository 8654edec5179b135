-- Charts are questions about runs; what they show is counted when somebody looks.
create table chart_sections (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    title text not null,
    description text,
    index int not null,
    created_at timestamptz not null default now()
);

create index chart_sections_in_order on chart_sections (workspace_id, index, id);

create table charts (
    id uuid primary key,
    workspace_id uuid not null references workspaces (id),
    section_id uuid not null references chart_sections (id) on delete cascade,
    title text not null,
    description text,
    index int not null,
    chart_type text not null,
    series jsonb not null,
    common_filters jsonb,
    metadata jsonb,
    created_at timestamptz not null default now()
);

create index charts_of_section on charts (section_id, index, id);
