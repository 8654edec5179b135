-- The examples of a dataset are counted in an index. The planner takes every dataset for as large as the average, and would read
-- all examples of a large one for each small one.
-- Older versions run: an index changes no result.
create index examples_present on examples (workspace_id, dataset_id) where until = 'infinity';
