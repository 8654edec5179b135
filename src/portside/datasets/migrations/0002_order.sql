-- Lists of a dataset's examples go by what was changed last; a page of one comes out of this without sorting.
create index examples_in_order on examples (workspace_id, dataset_id, since desc, position, id);
drop index examples_of_dataset;
