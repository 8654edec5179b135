-- adopts 0049_cron_runs.sql
-- Brings a database of the development version to the baseline; see `kernel/migrations.py`.

-- Functions are dropped where no table uses them. Those that tables use are renamed, and replaced by the function files.
do $$
declare
    old text;
begin
    for old in
        select oid::regprocedure from pg_proc
        where pronamespace = current_schema()::regnamespace and proname = any (array[
            'a2a_state', 'admit_run', 'admit_run_for', 'admit_runs', 'cancel_runs', 'cancel_thread_runs', 'claim_runs',
            'condition_holds', 'count_waiting', 'delete_run', 'end_run', 'end_runs', 'find_many_threads', 'find_threads',
            'finish_run', 'fits', 'has_runs', 'kept_until', 'leave_thread', 'make_store_vectors', 'next_turn', 'other_fields',
            'put_at', 'release_expired_runs', 'store_compares', 'store_fits', 'store_matches', 'turn_cost'
        ])
        order by proname <> 'kept_until', proname <> 'store_fits'  -- their bodies are bound to other functions
    loop
        execute format('drop function %s', old);
    end loop;
end $$;
drop function run_key_lifetime();
alter function plain_fields(jsonb) rename to indexed_fields;
alter function forget_thread() rename to delete_thread_checkpoints;
alter function note_webhook() rename to set_run_webhook;
alter function owe_webhook() rename to enqueue_webhook;

alter table threads rename column resting_status to idle_status;
alter table threads rename constraint threads_resting_status_check to threads_idle_status_check;
alter index threads_by_plain_metadata rename to threads_by_metadata_fields;
alter index threads_by_plain_values rename to threads_by_values_fields;
alter statistics plain_metadata_of_threads rename to threads_metadata_fields;
alter statistics plain_values_of_threads rename to threads_values_fields;
alter trigger threads_are_forgotten on threads rename to threads_delete_checkpoints;

alter table runs add column priority smallint not null default 0;
alter table runs add column is_streamed boolean not null default false;
alter table runs rename column turn_at to queue_position;
alter table runs rename column losses to lost_attempts;
alter table runs rename column asked_by to caller;
alter table runs rename column key_place to key_index;
drop index runs_waiting_for;
create index runs_pending_of_caller on runs (caller, is_delayed, priority, queue_position)
where status = 'pending' and caller is not null;
alter trigger runs_note_webhook on runs rename to runs_set_webhook;
alter trigger runs_owe_webhook on runs rename to runs_enqueue_webhook;
alter table runs rename constraint runs_owe_webhook to runs_enqueue_webhook;

-- Exists once a search index was configured.
do $$
begin
    if to_regclass('store_vectors') is not null then
        alter table store_vectors rename column place to vector_index;
    end if;
end $$;

alter table stream_interests rename to stream_subscriptions;
alter table stream_subscriptions rename constraint stream_interests_pkey to stream_subscriptions_pkey;
alter table stream_subscriptions
    rename constraint stream_interests_process_id_fkey to stream_subscriptions_process_id_fkey;
alter index stream_interests_of_process rename to stream_subscriptions_of_process;
alter table stream_heads rename column touched_at to updated_at;
alter table stream_sequences rename column touched_at to updated_at;

-- Encrypted data of these databases is not bound to its place.
create table encryption (
    may_contain_unbound boolean not null
);
insert into encryption values (true);
