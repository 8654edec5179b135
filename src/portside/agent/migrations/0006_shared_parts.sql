-- What a task writes is in the next checkpoint as well, where it is a piece (docs/why/long-threads.md). `shared` holds
-- five numbers for each part of a value or a write that is read from a piece: how many bytes of `data` come before it,
-- the piece's series and number, and the part's first byte and its length in the piece.
alter table checkpoint_values add column shared bigint[];
alter table checkpoint_writes add column shared bigint[];
