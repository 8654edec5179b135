-- Runs as readers see them.

-- The class of an error that LangChain's tracer for JavaScript reports: its message, an empty line and its stack, which
-- repeats the message after the class. Null for any other text, such as an error whose message only looks like this: the
-- message that stands before the first empty line must be the one in the stack.
create or replace function class_in_stack(error text) returns text
language sql immutable strict parallel safe
return (
    select e.class
    from (
        select m.message, m.stack, substring(left(m.stack, 80) from '^[A-Za-z]+') as class
        from (
            select split_part(error, E'\n\n', 1) as message,
                   substr(error, length(split_part(error, E'\n\n', 1)) + 3) as stack
        ) m
    ) e
    where starts_with(
        e.stack, e.class || case e.message when '' then '' else ': ' || e.message end || E'\n'
    )
);

-- How a run that reported an error ended. LangGraph stops a node by an exception, and its tracer reports that as an error of
-- each run on the way: a question for a person and a stop of the server interrupt them, and a command for the graph above is
-- how a node hands over. Python's tracer begins the text with the class and a parenthesis, `traceable` for JavaScript with the
-- class and a colon. A text that may be of LangChain's tracer for JavaScript begins with a list, an empty message or this
-- sentence; no other one is read beyond its beginning.
create or replace function end_of_failed_run(error text) returns text
language sql immutable strict parallel safe
return case
    when left(error, 80) ~ '^(GraphInterrupt|NodeInterrupt|GraphDrained)(\(|: |$)' then 'interrupted'
    when left(error, 80) ~ '^ParentCommand(\(|$)' then 'success'
    when left(error, 80) ~ E'^(\\[|\n\n|Graph drained: )' then
        case when class_in_stack(error) in ('GraphInterrupt', 'NodeInterrupt', 'GraphDrained') then 'interrupted'
             when class_in_stack(error) = 'ParentCommand' then 'success'
             else 'error' end
    else 'error'
end;

-- A row without a name or a project stands for a run that was not posted yet. A child whose parent never arrived is shown
-- as a trace of its own.
-- Only a model run (`run_type` llm) uses tokens. A chain that returns its model's output reports the same usage again, and
-- a sum over the runs of a project or trace would count it twice.
create or replace view readable_runs as
select r.workspace_id, r.id, r.name, coalesce(r.run_type, 'chain') as run_type,
       case
           when r.error is not null then end_of_failed_run(r.error)
           when r.has_interrupts and r.status = 'success' then 'interrupted'
           else r.status
       end as status,
       coalesce(r.trace_id, r.id) as trace_id,
       coalesce(r.dotted_order, dotted_order_part(r.start_time, r.received_at, r.id)) as dotted_order,
       r.parent_run_id, r.parent_run_id is null as is_root, r.project_id as session_id, r.reference_example_id,
       coalesce(r.start_time, r.received_at) as start_time, r.end_time,
       extract(epoch from r.end_time - coalesce(r.start_time, r.received_at))::float8 as latency,
       coalesce(r.tags, '{}') as tags, r.error,
       case when left(r.inputs, 1) = e'\x02' then whole_value(r.inputs) else r.inputs end as inputs,
       case when left(r.outputs, 1) = e'\x02' then whole_value(r.outputs) else r.outputs end as outputs,
       r.extra, r.events, r.serialized,
       r.first_token_time,
       coalesce(trunc(amount_of(u.usage, 'input_tokens')), 0)::bigint as prompt_tokens,
       coalesce(trunc(amount_of(u.usage, 'output_tokens')), 0)::bigint as completion_tokens,
       -- A total that is smaller than its parts, such as one with a negative count, is not believed.
       greatest(
           coalesce(trunc(amount_of(u.usage, 'total_tokens')), 0),
           coalesce(trunc(amount_of(u.usage, 'input_tokens')), 0) + coalesce(trunc(amount_of(u.usage, 'output_tokens')), 0)
       )::bigint as total_tokens,
       -- Runs from before costs were stored have only those that clients reported.
       case when u.usage is not null then coalesce(r.prompt_cost, amount_of(u.usage, 'input_cost')) end as prompt_cost,
       case when u.usage is not null
            then coalesce(r.completion_cost, amount_of(u.usage, 'output_cost')) end as completion_cost,
       case when u.usage is not null then coalesce(r.total_cost, amount_of(u.usage, 'total_cost')) end as total_cost,
       u.usage, r.thread_id,
       case when u.usage is not null then r.prompt_cost_details end as prompt_cost_details,
       case when u.usage is not null then r.completion_cost_details end as completion_cost_details,
       case when u.usage is not null then r.price_id end as price_id,
       case when r.run_type = 'llm' then r.model_provider end as model_provider,
       case when r.run_type = 'llm' then r.model_name end as model_name, r.has_interrupts,
       r.inputs as stored_inputs, r.outputs as stored_outputs
from runs r
cross join lateral (select case when r.run_type = 'llm' then r.usage end as usage) u
where r.name is not null and r.project_id is not null;

-- The size in bytes of the fields of a run that are returned, so that a page ends before it becomes too large.
-- `octet_length` of a text reads its length alone, and not the text. Inputs and outputs are given as they are stored.
create or replace function run_bytes(
    selected text[], tags text[], error text, inputs text, outputs text, extra text, events text, serialized text
) returns bigint
language sql immutable parallel safe
return coalesce(octet_length(array_to_string(tags, '')), 0)::bigint
    + coalesce(octet_length(error), 0)
    + case when 'inputs' = any(selected) then coalesce(value_bytes(inputs), 0) else 0 end
    + case when 'outputs' = any(selected) then coalesce(value_bytes(outputs), 0) else 0 end
    + case when 'extra' = any(selected) then coalesce(octet_length(extra), 0) else 0 end
    + case when 'events' = any(selected) then coalesce(octet_length(events), 0) else 0 end
    + case when 'serialized' = any(selected) then coalesce(octet_length(serialized), 0) else 0 end;

-- The beginning of a value, or of its last message where it is a conversation: that says most in a list. Large values are
-- not parsed.
create or replace function preview_of(value text, chars int) returns text
language sql immutable parallel safe
return coalesce(
    case when octet_length(value) > chars and octet_length(value) <= 100000 and position('"messages"' in value) > 0
         then left(nullif(parse_json(value) #>> '{messages,-1,content}', ''), chars) end,
    left(value, chars)
);
