-- A workspace that was deleted keeps its row, for old bills. Nobody enters it from `deleted_at` on; `emptied_at` is when
-- nothing belonged to it any more.
alter table workspaces add column deleted_at timestamptz, add column emptied_at timestamptz;

create index workspaces_to_empty on workspaces (deleted_at) where deleted_at is not null and emptied_at is null;
