-- Refuse every change of the audit log but the removal of old entries by `expire_audit_entries`.
create or replace function refuse_audit_change() returns trigger
language plpgsql set search_path from current as $$
begin
    if tg_op = 'DELETE' and current_setting('portside.expires_audit_log', true) = 'on' then
        return old;
    end if;
    raise exception 'the audit log cannot be changed' using errcode = '55000';
end
$$;
