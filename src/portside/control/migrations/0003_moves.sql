-- Every state that a revision was ever in, with the reason and the moment. A trigger writes it, so that no statement
-- that moves a revision can forget to.
create table revision_moves (
    id bigint generated always as identity primary key,
    revision_id uuid not null references revisions (id) on delete cascade,
    status text not null,
    reason text,
    at timestamptz not null
);

create index revision_moves_of_revision on revision_moves (revision_id, id);

insert into revision_moves (revision_id, status, reason, at)
select id, status, status_message, updated_at from revisions order by deployment_id, number;

-- Two moves of one transaction happen at two moments, hence not `now()`.
create function record_revision_move() returns trigger language plpgsql as $$
begin
    insert into revision_moves (revision_id, status, reason, at)
    values (new.id, new.status, new.status_message, clock_timestamp());
    return null;
end
$$;

create trigger revision_created after insert on revisions
    for each row execute function record_revision_move();
create trigger revision_moved after update of status on revisions
    for each row when (old.status is distinct from new.status) execute function record_revision_move();
