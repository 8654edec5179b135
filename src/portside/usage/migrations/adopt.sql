-- adopts 0003_days_of_projects.sql
-- Brings a database of the development version to the baseline; see `kernel/migrations.py`.

drop function received_around_days(
    uuid[], timestamptz, timestamptz, timestamptz, timestamptz, timestamptz, timestamptz
);
drop function bucket_of(timestamptz, interval, timestamptz);

alter table counted_days rename column is_the_only to is_only;
alter table counted_days rename constraint counted_days_is_the_only_check to counted_days_is_only_check;
alter table counted_hours rename column is_the_only to is_only;
alter table counted_hours rename constraint counted_hours_is_the_only_check to counted_hours_is_only_check;
