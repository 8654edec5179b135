-- adopts 0011_runs_of_projects.sql
-- Brings a database of the development version to the baseline; see `kernel/migrations.py`.

-- Functions and views are dropped where no table uses them. Functions that tables use are renamed, and replaced by the
-- function files.
drop view readable_runs, readable_feedback;
do $$
declare
    old text;
begin
    for old in
        select oid::regprocedure from pg_proc
        where pronamespace = current_schema()::regnamespace and proname = any (array[
            'amount_of', 'count_traces', 'extends_trace', 'falls', 'groups_of', 'measured_runs', 'own_order', 'place_of',
            'says', 'settle', 'weighs'
        ])
        order by proname <> 'measured_runs'
    loop
        execute format('drop function %s', old);
    end loop;
end $$;
alter function readable_json(text) rename to parse_json;
alter function touch_day() rename to mark_day_stale;

alter index runs_without_place rename to runs_without_dotted_order;
alter trigger touch_day_of_new on runs rename to mark_day_of_new_run;
alter trigger touch_day_of_changed on runs rename to mark_day_of_changed_run;
alter trigger touch_day_of_deleted on runs rename to mark_day_of_deleted_run;

alter table figure_days rename to daily_run_stats;
alter table daily_run_stats rename column places to bins;
alter table daily_run_stats rename constraint figure_days_pkey to daily_run_stats_pkey;

alter table touched_days rename to stale_days;
alter table stale_days rename constraint touched_days_pkey to stale_days_pkey;

alter table figured_days rename to daily_run_stats_progress;
alter table daily_run_stats_progress rename column is_the_only to is_only;
alter table daily_run_stats_progress rename constraint figured_days_pkey to daily_run_stats_progress_pkey;
alter table daily_run_stats_progress
    rename constraint figured_days_is_the_only_check to daily_run_stats_progress_is_only_check;
