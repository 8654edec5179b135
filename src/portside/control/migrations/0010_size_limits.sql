-- Older versions run: they do not know the column, which may be null.
-- The largest sizes that the operator of a listener allows, as the listener said when it connected last.
alter table listeners add column size_limits jsonb;
