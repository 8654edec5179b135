-- Put a value at a place of a document; the empty path is the document itself, which `jsonb_set` would leave as it is.
create function put_at(p_document jsonb, p_path text[], p_value jsonb) returns jsonb
language sql immutable
as $$ select case when cardinality(p_path) = 0 then p_value else jsonb_set(p_document, p_path, p_value, false) end $$;
