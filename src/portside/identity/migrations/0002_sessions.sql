-- Browsers sign in with a cookie, command lines with a bearer token, and people see and end both in one list. The logins
-- of the command line become sessions of the kind `bearer`.
-- A session belongs to a user, or acts as the API key that was pasted to sign in. It ends with either.
create table sessions (
    id uuid primary key,
    user_id uuid references users (id),
    key_id uuid references api_keys (id),
    kind text not null check (kind in ('cookie', 'bearer')),
    method text not null,
    token_hash bytea not null unique,
    address text,
    client text,
    created_at timestamptz not null default now(),
    last_used_at timestamptz not null default now(),
    expires_at timestamptz not null,
    check (user_id is not null or key_id is not null)
);

create index sessions_of_user on sessions (user_id) where user_id is not null;
create index sessions_of_key on sessions (key_id) where key_id is not null;
create index sessions_by_end on sessions (expires_at);

insert into sessions (id, user_id, kind, method, token_hash, created_at, expires_at)
select id, user_id, 'bearer', 'password', token_hash, created_at, expires_at from logins;

drop index logins_of_user;
drop index logins_by_end;
drop table logins;
