-- Addresses that sign a browser in once. A session belongs to a user, or to the key that asked for the address.
create table sign_in_links (
    id uuid primary key,
    token_hash bytea not null unique,
    user_id uuid references users (id),
    key_id uuid references api_keys (id),
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    check (user_id is not null or key_id is not null)
);

create index sign_in_links_by_end on sign_in_links (expires_at);
