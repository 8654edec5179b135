-- The hash of an entry: of the hash before it and of all its values, in a form that does not depend on settings. Values
-- that are null do not count, so that a later version may add columns.
create or replace function audit_hash(before bytea, entry audit_log) returns bytea
language plpgsql stable set search_path from current as $$
begin
    return sha256(coalesce(before, ''::bytea) || convert_to(
        (jsonb_strip_nulls(to_jsonb(entry) - 'hash') || jsonb_build_object('at', extract(epoch from entry.at)::numeric(20, 6)))::text, 'UTF8'
    ));
end
$$;

-- Append an entry as the last statement of a transaction. With :only_if_changed nothing is appended if the transaction
-- has changed nothing so far. The lock lasts until the commit, so that entries have the order of their commits.
create or replace function append_audit_entry(given jsonb, only_if_changed boolean) returns boolean
language plpgsql set search_path from current as $$
declare
    entry audit_log;
    newest audit_log;
begin
    if only_if_changed and pg_current_xact_id_if_assigned() is null then
        return false;
    end if;
    perform pg_advisory_xact_lock(x'61756469'::int);
    select * into newest from audit_log order by seq desc limit 1;
    entry := jsonb_populate_record(null::audit_log, given);
    entry.seq := coalesce(newest.seq, 0) + 1;
    entry.at := clock_timestamp();
    if entry.user_email is null and entry.user_id is not null then
        select email, organization_id into entry.user_email, entry.organization_id from users where id = entry.user_id;
    end if;
    entry.hash := audit_hash(newest.hash, entry);
    insert into audit_log select entry.*;
    return true;
end
$$;

-- Delete up to :most entries that are older than :before, and return their number. The newest entry always stays:
-- the next one continues its chain. So does every entry behind one that is not old enough, of a clock that was set back
-- since: a gap between entries would look as if somebody had removed them.
create or replace function expire_audit_entries(before timestamptz, most int) returns bigint
language plpgsql set search_path from current as $$
declare
    deleted bigint;
begin
    perform set_config('portside.expires_audit_log', 'on', true);
    with kept as (
        select min(seq) as first from audit_log where at >= before
    ),
    old as (
        select seq from audit_log, kept
        where at < before and seq < (select max(seq) from audit_log) and (kept.first is null or seq < kept.first)
        order by seq limit most
    )
    delete from audit_log using old where audit_log.seq = old.seq;
    get diagnostics deleted = row_count;
    perform set_config('portside.expires_audit_log', 'off', true);
    return deleted;
end
$$;
