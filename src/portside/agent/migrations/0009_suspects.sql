-- An executor crashed with the run. It may be the cause, so from then on it has an executor for itself, and each crash counts.
-- Older versions run: the column has a default, and they forget suspects at a restart, as they did.
alter table runs add column is_suspect boolean not null default false;
