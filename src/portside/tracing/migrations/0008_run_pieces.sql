-- Long lists in the inputs and outputs of runs are stored in pieces (`tracing/pieces.py`).
-- Older versions run: the view joins the pieces, and what they write is stored whole.
create table run_pieces (
    scope uuid not null,
    digest uuid not null,
    data text not null,
    primary key (scope, digest)
);

-- The runs whose inputs or outputs may refer to pieces of a scope.
create table piece_users (
    workspace_id uuid not null,
    run_id uuid not null,
    scope uuid not null,
    primary key (workspace_id, run_id, scope)
);

create index piece_users_of_scope on piece_users (scope);

-- Scopes of deleted runs. Every transaction inserts rows of its own, so that none waits for another.
create table stale_scopes (
    scope uuid not null,
    written_by xid8 not null default pg_current_xact_id(),
    primary key (scope, written_by)
);

create trigger forget_deleted_users_of_pieces after delete on runs referencing old table as deleted
for each statement execute function forget_users_of_pieces();
