-- Replace the value at a path of a document. The empty path is the document itself, which `jsonb_set` would not replace.
create or replace function jsonb_replace(p_document jsonb, p_path text[], p_value jsonb) returns jsonb
language sql immutable
return case when cardinality(p_path) = 0 then p_value else jsonb_set(p_document, p_path, p_value, false) end;
