-- name: insert_cron
-- encrypted: payload as cron.payload, metadata as cron.metadata, owner as cron.owner
-- row: cron_id = cron_id
-- The foreign keys check that assistant and thread exist: neither can be deleted between a check and this. No row if the
-- id is taken.
insert into crons (
    cron_id, assistant_id, thread_id, user_id, owner, thread_access, schedule, timezone, end_time, ends_at, payload,
    metadata, on_run_completed, is_enabled, next_run_date
) values (
    :cron_id, :assistant_id, :thread_id, :user_id, :owner, :thread_access, :schedule, :timezone, :end_time, :ends_at,
    :payload, :metadata, :on_run_completed, :is_enabled, :next_run_date
)
on conflict (cron_id) do nothing
returning cron_id, assistant_id, thread_id, user_id, end_time, schedule, timezone, payload, next_run_date, metadata,
          on_run_completed, is_enabled, is_enabled as enabled, created_at, updated_at, skipped_count

-- name: get_cron
-- replaceable: crons
select cron_id, assistant_id, thread_id, user_id, end_time, ends_at, schedule, timezone, payload, next_run_date,
       metadata, on_run_completed, is_enabled, is_enabled as enabled, created_at, updated_at, skipped_count,
       updated_at as version
from crons where cron_id = :cron_id

-- name: change_cron
-- encrypted: payload as cron.payload, metadata as cron.metadata
-- row: cron_id = cron_id
-- Returns no row if another request changed the cron since it was read. A firing is not a change: it moves next_run_date
-- alone, which this keeps unless the change affects the schedule.
update crons set
    assistant_id = :assistant_id, schedule = :schedule, timezone = :timezone, end_time = :end_time, ends_at = :ends_at,
    payload = :payload, metadata = :metadata, on_run_completed = :on_run_completed, is_enabled = :is_enabled,
    next_run_date = case when :is_rescheduled then :next_run_date else next_run_date end,
    scheduled_at = case when :is_rescheduled then now() else scheduled_at end,
    updated_at = greatest(clock_timestamp(), updated_at + interval '1 microsecond')
where cron_id = :cron_id and updated_at = :version
returning cron_id, assistant_id, thread_id, user_id, end_time, schedule, timezone, payload, next_run_date, metadata,
          on_run_completed, is_enabled, is_enabled as enabled, created_at, updated_at, skipped_count

-- name: make_cron_due
-- The next firing runs it and computes its next time, as for every other time. Returns no row for a cron that is paused or
-- has ended.
update crons set next_run_date = now(), claimed_until = null, scheduled_at = now()
where cron_id = :cron_id and is_enabled and next_run_date is not null
returning cron_id, assistant_id, thread_id, user_id, end_time, schedule, timezone, payload, next_run_date, metadata,
          on_run_completed, is_enabled, is_enabled as enabled, created_at, updated_at, skipped_count

-- name: delete_cron
delete from crons where cron_id = :cron_id returning cron_id

-- name: search_crons
-- searched: metadata as cron.metadata
-- replaceable: crons
-- undecryptable: mark
-- Every sort key becomes text that sorts as its type does, so that one pair of expressions serves all of them.
select cron_id, assistant_id, thread_id, user_id, end_time, schedule, timezone, payload, next_run_date, metadata,
       on_run_completed, is_enabled, is_enabled as enabled, created_at, updated_at, skipped_count,
       count(*) over () as total
from crons
cross join lateral (
    select case :sort_by
        when 'cron_id' then cron_id::text
        when 'assistant_id' then assistant_id::text
        when 'thread_id' then thread_id::text
        else to_char(
            case :sort_by
                when 'next_run_date' then next_run_date
                when 'end_time' then ends_at
                when 'updated_at' then updated_at
                else created_at
            end at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US'
        )
    end collate "C" as sort_key
) sorted
where (:assistant_id::uuid is null or assistant_id = :assistant_id)
  and (:thread_id::uuid is null or thread_id = :thread_id)
  and (:is_enabled::boolean is null or is_enabled = :is_enabled)
  and (:metadata::jsonb is null or metadata @> :metadata)
  and (:access::jsonb is null or matches_access(metadata, :access))
  and (:thread_access::jsonb is null or thread_id is null or exists (
      select from threads t where t.thread_id = crons.thread_id and matches_access(t.metadata, :thread_access)
  ))
order by
    case when :is_descending then sort_key end desc nulls last,
    case when not :is_descending then sort_key end asc nulls last,
    case when :is_descending then cron_id end desc,
    cron_id
limit :limit offset :offset

-- name: count_crons
-- searched: metadata as cron.metadata
select count(*) from crons
where (:assistant_id::uuid is null or assistant_id = :assistant_id)
  and (:thread_id::uuid is null or thread_id = :thread_id)
  and (:is_enabled::boolean is null or is_enabled = :is_enabled)
  and (:metadata::jsonb is null or metadata @> :metadata)
  and (:access::jsonb is null or matches_access(metadata, :access))
  and (:thread_access::jsonb is null or thread_id is null or exists (
      select from threads t where t.thread_id = crons.thread_id and matches_access(t.metadata, :thread_access)
  ))

-- name: claim_due_crons
-- replaceable: crons
-- undecryptable: mark and keep
-- A claim only spreads the work: other processes skip these crons for a while, and take them if this process dies. A claim
-- that ends later than a new one could was made before the clock was set back, and is ignored.
update crons set claimed_until = now() + make_interval(secs => :claim_s)
where cron_id in (
    select cron_id from crons
    where is_enabled and next_run_date <= now() and (
        claimed_until is null or claimed_until <= now() or claimed_until > now() + 2 * make_interval(secs => :claim_s)
    )
    order by next_run_date limit :limit for update skip locked
)
returning cron_id, assistant_id, thread_id, user_id, owner, thread_access, schedule, timezone, ends_at, payload, metadata,
          on_run_completed, last_run_id, next_run_date as due_at, now() as claimed_at

-- name: advance_cron
-- Runs in the transaction that admits the run. Returns no row if the instant was fired already, or moved by a change:
-- then the run must not exist either. It comes after the admission, so that thread and cron are locked in the same order
-- as when a thread is deleted. Without a run the instant is skipped.
update crons set
    next_run_date = :next_run_date, claimed_until = null, last_run_id = coalesce(:run_id::uuid, last_run_id),
    skipped_count = skipped_count + (:run_id::uuid is null)::int, scheduled_at = now()
where cron_id = :cron_id and is_enabled and next_run_date = :due_at
returning cron_id

-- name: crons_of_wrong_clock
-- Crons whose next instant was computed while the clock was fast by hours.
select cron_id, schedule, timezone, ends_at, next_run_date, now() as now from crons
where is_enabled and scheduled_at > now() + make_interval(secs => :fast_by_s)
order by scheduled_at limit :limit

-- name: reschedule_cron
-- Only if the cron is still due at the time that was read: another process may have fired or changed it since.
update crons set next_run_date = :next_run_date, claimed_until = null, scheduled_at = now()
where cron_id = :cron_id and is_enabled and next_run_date is not distinct from :was_due_at

-- name: seconds_until_due
-- A cron that another process has claimed is due when its claim expires. Null if none is due within the time.
select extract(epoch from min(greatest(next_run_date, claimed_until)) - now())::float8
from crons where is_enabled and next_run_date <= now() + make_interval(secs => :within_s)

-- name: run_is_waiting
-- The last run of a cron, behind which another one would only wait.
select exists (select from runs where run_id = :run_id and status = 'pending')
