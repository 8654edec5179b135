-- Who made a key: a user, or another key. Both are null where the platform made it, and for keys from before this column.
alter table api_keys
    add column created_by_user uuid references users (id), add column created_by_key uuid references api_keys (id);
