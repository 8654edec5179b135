-- Replace the value at a path of a document. The empty path is the document itself, which `jsonb_set` would not replace.
create or replace function jsonb_replace(p_document jsonb, p_path text[], p_value jsonb) returns jsonb
language sql immutable
return case when cardinality(p_path) = 0 then p_value else jsonb_set(p_document, p_path, p_value, false) end;

-- Whether a stored blob begins, after its short head, with one of these bytes: the version and the id of an AES key.
create or replace function holds_any(p_data bytea, p_starts bytea[]) returns boolean
language sql immutable
return exists (select from unnest(p_starts) as start where position(start in substring(p_data from 1 for 300)) > 0);
