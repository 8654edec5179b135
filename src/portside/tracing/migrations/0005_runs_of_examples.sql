-- Pages of a comparison of experiments are read by their examples. Few runs have one.
create index runs_of_examples on runs (workspace_id, project_id, reference_example_id)
where reference_example_id is not null;
