-- A node may return a whole long list or dict instead of what is new in it. Such a write shares pieces with the value of
-- its checkpoint, in the form of `checkpoint_values.pieces`.
alter table checkpoint_writes add column pieces bigint[];
