-- Interrupted runs counted as failed (`end_of_failed_run`): the days with such runs are counted again.
insert into stale_days (project_id, day)
select distinct project_id, date_trunc('day', coalesce(start_time, received_at), 'UTC') from runs
where left(error, 80) ~ '^(GraphInterrupt|NodeInterrupt|GraphDrained|ParentCommand)\(' and project_id is not null
on conflict do nothing;
