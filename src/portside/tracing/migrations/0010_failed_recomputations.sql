-- A batch of a recomputation that fails is tried again after a pause, so that it does not hold up the recomputations of
-- others. `failures` are those since the last batch that succeeded.
-- Older versions run: the columns have defaults.
alter table cost_recomputations
    add column failures int not null default 0, add column retry_at timestamptz, add column error text;
