-- Comparisons of filters. Without an operator everything matches. Null is unequal to every value and matches no other
-- comparison. One body for all types, which the planner puts into the statement like an operator.
create or replace function value_matches(actual anyelement, op text, operand anyarray) returns boolean
language sql immutable
as $$
    select case op
        when 'eq' then actual = operand[1]
        when 'neq' then actual is distinct from operand[1]
        when 'gt' then actual > operand[1]
        when 'gte' then actual >= operand[1]
        when 'lt' then actual < operand[1]
        when 'lte' then actual <= operand[1]
        when 'in' then actual = any(operand)
        when 'exists' then actual is not null
        else true
    end
$$;

-- A text can be searched too.
create or replace function text_matches(actual text, op text, operand text[]) returns boolean
language sql immutable
return case op
    when 'search' then position(lower(operand[1]) in lower(actual)) > 0
    else value_matches(actual, op, operand)
end;

create or replace function number_matches(actual float8, op text, operand float8[]) returns boolean
language sql immutable
return value_matches(actual, op, operand);

create or replace function time_matches(actual timestamptz, op text, operand timestamptz[]) returns boolean
language sql immutable
return value_matches(actual, op, operand);

-- Whether JSON contains a text: as it is written there, or within the texts that it holds. Those write quotes, backslashes and
-- control characters with escapes; `escaped` is the text with them. Only JSON whose writer chose to escape other characters too,
-- such as `\u00fc`, has to be decoded. PL/pgSQL, because an inlined function would read a value in pieces several times.
create or replace function json_contains(value text, plain text, escaped text) returns boolean
language plpgsql immutable parallel safe set search_path from current
as $$
begin
    return position(lower(plain) in lower(value)) > 0
        or (escaped <> plain and position(lower(escaped) in lower(value)) > 0)
        or (value ~ '\\[u/]' and position(lower(escaped) in lower(parse_json(value)::text)) > 0);
end
$$;
