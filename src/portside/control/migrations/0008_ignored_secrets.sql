-- Older versions run: the column has a default, and without it the servers get every secret.
-- Names of secrets that the servers of a revision do not get: a tracing key of another platform, which this one refuses.
alter table revisions add column ignored_secrets text[] not null default '{}';
