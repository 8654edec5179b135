-- name: sealed_values
-- The values of one column that a key other than :key_id encrypted. A value begins with its version (1 byte) and the id
-- of its key (4 bytes). The names in quotes are replaced for the other columns (`COLUMNS` of `key_rotation.py`),
-- because a parameter cannot be a name.
select id, "check_sealed" as encrypted from "master_key_check"
where substring("check_sealed" from 2 for 4) <> :key_id
limit :limit for no key update

-- name: replace_sealed_value
-- With names in quotes, as in `sealed_values`.
update "master_key_check" set "check_sealed" = :encrypted where id = :id

-- name: read_master_key_check
select id, check_sealed as encrypted from master_key_check

-- name: write_master_key_check
-- Of two programs that start on one database at the same time, the first one's value stays.
insert into master_key_check (id, check_sealed) values (:id, :encrypted) on conflict do nothing
