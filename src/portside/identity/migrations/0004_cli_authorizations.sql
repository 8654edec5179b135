-- Command lines that sign in through a browser: with a code that a person types (flow `device`, RFC 8628), or with a code
-- that the browser brings back to a port of its own machine (flow `browser`, RFC 8252). `session_id` is set once the code
-- was exchanged for a session; the row stays for a while, so that a second use of the code ends that session.
create table cli_authorizations (
    id uuid primary key,
    flow text not null check (flow in ('device', 'browser')),
    code_hash bytea not null unique,
    user_code_hash bytea unique,
    code_challenge text,
    redirect_uri text,
    host_name text,
    address text not null,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    poll_after timestamptz not null default now(),
    interval_s integer not null default 0,
    decision text check (decision in ('approved', 'denied')),
    user_id uuid references users (id),
    key_id uuid references api_keys (id),
    session_id uuid,
    check (decision is distinct from 'approved' or user_id is not null or key_id is not null)
);

create index cli_authorizations_of_user on cli_authorizations (user_id) where user_id is not null;
create index cli_authorizations_of_address on cli_authorizations (address);
create index cli_authorizations_by_end on cli_authorizations (expires_at);

-- Every user code that somebody typed counts, so that nobody can try many.
create table user_code_attempts (
    caller_id uuid not null,
    attempted_at timestamptz not null default now()
);

create index user_code_attempts_of_caller on user_code_attempts (caller_id, attempted_at);
