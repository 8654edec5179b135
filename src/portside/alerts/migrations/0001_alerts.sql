-- Where alerts are sent. `target_sealed` is encrypted for the channel's id: the address of a webhook is often a secret.
create table alert_channels (
    id uuid primary key,
    kind text not null check (kind in ('webhook', 'mail')),
    name text not null unique,
    target_sealed bytea not null,
    created_at timestamptz not null default now()
);

-- Rules whose thresholds differ from the defaults.
create table alert_rules (
    rule text primary key,
    is_enabled boolean not null,
    threshold double precision not null,
    for_s double precision not null
);

-- No message is sent for a rule, or for one of its subjects, until then.
create table alert_silences (
    id uuid primary key,
    rule text not null,
    subject text,
    until timestamptz not null,
    comment text not null,
    created_at timestamptz not null default now()
);

-- One row for each time that a condition held. It is pending until it has held for as long as its rule says.
create table alerts (
    id uuid primary key,
    rule text not null,
    subject text not null,
    name text not null,
    detail text not null,
    value double precision not null,
    threshold double precision not null,
    began_at timestamptz not null,
    fired_at timestamptz,
    recovering_since timestamptz,
    ended_at timestamptz,
    notified_at timestamptz
);

create unique index alerts_open on alerts (rule, subject) where ended_at is null;
create index alerts_newest on alerts (began_at desc, id);

-- Messages to send, and what became of them.
create table alert_deliveries (
    id uuid primary key,
    channel_id uuid not null references alert_channels (id) on delete cascade,
    alert_id uuid not null references alerts (id) on delete cascade,
    event text not null check (event in ('firing', 'ended')),
    attempts int not null default 0,
    next_at timestamptz default now(),
    delivered_at timestamptz,
    error text,
    created_at timestamptz not null default now(),
    unique (channel_id, alert_id, event)
);

create index alert_deliveries_due on alert_deliveries (next_at) where next_at is not null;
