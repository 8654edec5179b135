-- Costs of model runs. All of this is PL/pgSQL because it is applied before the tables exist: a trigger uses it.

-- The prices that match a model, the best first: those of the workspace, of the operator's file, and the shipped ones;
-- among them those for its provider alone, and those with the longest pattern. A pattern matches the whole name. In files
-- it matches the name without a prefix (`models/`, `us.anthropic.`) and without a version (`-2024-08-06`, `-v1:0`).
create or replace function matching_prices(workspace uuid, provider_name text, model text) returns uuid[]
language plpgsql stable set search_path from current
as $$
begin
    return (
        select coalesce(array_agg(
            p.id
            order by array_position(array['workspace', 'file', 'shipped'], p.source), p.provider is null,
                     length(p.match_pattern) desc, p.start_time desc nulls last, p.prompt_token_threshold desc nulls last, p.id
        ), '{}')
        from model_prices p
        where (p.workspace_id is null or p.workspace_id = workspace)
          and (p.provider is null or provider_name = '' or lower(p.provider) = lower(provider_name))
          and model ~* case p.source
              when 'workspace' then '^(?:' || p.match_pattern || ')$'
              else '^(?:.*[/.])?(?:' || p.match_pattern
                  || ')(?:[-@](?:latest|exp|preview(?:-[0-9][0-9-]*)?|[0-9]{3}[0-9-]*|v[0-9]+(?::[0-9]+)?))*$'
          end
    );
end
$$;

-- The prices of a model. They are looked up by patterns once and remembered in `models`. Ingest never waits here: if another
-- transaction is writing the same row or prices, the answer is not remembered.
create or replace function prices_of_model(workspace uuid, provider_name text, model text) returns uuid[]
language plpgsql set search_path from current
as $$
declare
    known uuid[];
begin
    select m.prices into known from models m
    where m.workspace_id = workspace and m.provider = provider_name and m.name = model;
    if found then
        return known;
    end if;
    if not pg_try_advisory_xact_lock_shared(hashtext('portside.tracing.prices'))
        or not pg_try_advisory_xact_lock(hashtextextended(workspace || ' ' || provider_name || ' ' || model, 0)) then
        return matching_prices(workspace, provider_name, model);
    end if;
    known := matching_prices(workspace, provider_name, model);
    -- Clients choose the names of models, so their number is limited.
    insert into models (workspace_id, provider, name, prices)
    select workspace, provider_name, model, known
    where (select count(*) from models m where m.workspace_id = workspace) < 10000
    on conflict do nothing;
    return known;
end
$$;

-- A number that a client reported, within the range that sums can take. Some clients send numbers as text. A negative
-- number counts as not reported.
create or replace function amount_of(reported jsonb, key text) returns numeric
language sql immutable
return case jsonb_typeof(reported -> key)
    when 'number' then
        case when (reported ->> key)::numeric >= 0 then least((reported ->> key)::numeric, 1e15) end
    when 'string' then
        case when reported ->> key ~ '^ *[+]?([0-9]{1,30}([.][0-9]{0,30})?|[.][0-9]{1,30})([eE][+-]?[0-9]{1,2})? *$'
             then least((reported ->> key)::numeric, 1e15) end
end;

-- Reported costs of details with text values, as computed ones have. What is no number is left out: the SDKs could not read
-- the run.
create or replace function reported_cost_details(details jsonb) returns jsonb
language sql immutable
return case when jsonb_typeof(details) = 'object' then (
    select jsonb_object_agg(d.key, d.value) from jsonb_each_text(details) as d (key, value)
    where d.value ~ '^-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?$'
) end;

-- The prices of details of a side, with those that stand for each other: a price of tokens written to a cache is one for any
-- lifetime, unless the price has one of its own for five minutes or an hour.
create or replace function complete_prices(prices jsonb) returns jsonb
language sql immutable
return jsonb_strip_nulls(jsonb_build_object(
    'cache_creation', prices -> 'ephemeral_5m_input_tokens',
    'ephemeral_5m_input_tokens', prices -> 'cache_creation',
    'ephemeral_1h_input_tokens', coalesce(prices -> 'cache_creation', prices -> 'ephemeral_5m_input_tokens')
)) || prices;

-- The details of a side with `cache_creation` as the tokens that no `ephemeral_*` detail counts: those are parts of it.
create or replace function distinct_details(details jsonb) returns jsonb
language sql immutable
return case
    when details ?| array['ephemeral_5m_input_tokens', 'ephemeral_1h_input_tokens'] and details ? 'cache_creation' then
        details || jsonb_build_object('cache_creation', greatest(
            coalesce(amount_of(details, 'cache_creation'), 0)
                - coalesce(amount_of(details, 'ephemeral_5m_input_tokens'), 0)
                - coalesce(amount_of(details, 'ephemeral_1h_input_tokens'), 0),
            0
        ))
    else details
end;

-- The usage in a document, also where it is JSON in a text, as an attribute of OpenTelemetry is.
create or replace function usage_in(reported jsonb) returns jsonb
language sql immutable
return case jsonb_typeof(reported)
    when 'object' then reported
    when 'string' then nullif(parse_json(reported #>> '{}'), 'null')
end;

-- The usage in the outputs of a model run: of the run, or of the message that the model answered.
create or replace function usage_in_outputs(outputs text) returns jsonb
language plpgsql immutable set search_path from current
as $$
declare
    doc jsonb := parse_json(outputs);
begin
    return coalesce(doc -> 'usage_metadata', doc #> '{generations,0,0,message,kwargs,usage_metadata}');
end
$$;

-- What is stored about the cost of a model run: its usage and model as the client reported them, and the costs. Data that
-- does not contain a usage is not parsed. LangChain puts the usage into the metadata; older versions only into the message
-- that the model answered. The tracing SDK in its mode for OpenTelemetry sends the details in that message alone.
-- Costs that the client reported are kept as they are. Otherwise they are computed from the tokens by the price that was
-- valid when the run started: tokens of a detail with a price of its own (cache_read, audio, reasoning) cost that, all
-- others the price of their side. Without a price costs are null. One function, because calls cost time at ingest.
create or replace function costs_of_run(
    workspace uuid, started timestamptz, extra text, outputs text,
    out usage jsonb, out model_provider text, out model_name text, out prompt_cost numeric, out completion_cost numeric,
    out total_cost numeric, out prompt_cost_details jsonb, out completion_cost_details jsonb, out price_id uuid
)
language plpgsql set search_path from current
as $$
declare
    doc jsonb;
    price record;
    details jsonb;
    prices jsonb;
    detail text;
    detail_price text;
    amount numeric;
    rest numeric;
    cost numeric;
    parts jsonb;
    is_prompt boolean;
begin
    if left(outputs, 1) = e'\x02' then
        outputs := whole_value(outputs);
    end if;
    if position('"usage_metadata"' in extra) > 0 then
        doc := parse_json(extra);
        usage := usage_in(doc #> '{metadata,usage_metadata}');
    end if;
    if jsonb_typeof(usage) is distinct from 'object' and position('"usage_metadata"' in outputs) > 0 then
        usage := usage_in_outputs(outputs);
    elsif not usage ?| array['input_token_details', 'output_token_details'] and position('_token_details"' in outputs) > 0 then
        details := usage_in_outputs(outputs);
        if amount_of(details, 'input_tokens') = amount_of(usage, 'input_tokens')
            and amount_of(details, 'output_tokens') = amount_of(usage, 'output_tokens') then
            usage := details || usage;
        end if;
    end if;
    if jsonb_typeof(usage) is distinct from 'object' then
        usage := null;
        return;
    end if;
    doc := coalesce(doc, parse_json(extra));
    model_provider := left(doc #>> '{metadata,ls_provider}', 200);
    model_name := left(coalesce(
        doc #>> '{metadata,ls_model_name}', doc #>> '{invocation_params,model}', doc #>> '{invocation_params,model_name}',
        doc #>> '{invocation_params,model_id}', doc #>> '{invocation_params,model_path}',
        doc #>> '{invocation_params,endpoint_name}'
    ), 500);
    if usage ?| array['input_cost', 'output_cost', 'total_cost'] then
        prompt_cost := amount_of(usage, 'input_cost');
        completion_cost := amount_of(usage, 'output_cost');
        total_cost := coalesce(
            amount_of(usage, 'total_cost'), coalesce(prompt_cost, 0) + completion_cost, prompt_cost
        );
        if total_cost is not null then
            prompt_cost_details := reported_cost_details(usage -> 'input_cost_details');
            completion_cost_details := reported_cost_details(usage -> 'output_cost_details');
            return;
        end if;
    end if;
    if coalesce(model_name, '') = '' then
        return;
    end if;
    amount := amount_of(usage, 'input_tokens');
    select p.* into price
    from unnest(prices_of_model(workspace, coalesce(model_provider, ''), model_name)) with ordinality as x (id, place)
    join model_prices p on p.id = x.id
    where (p.start_time is null or p.start_time <= started)
      and (p.prompt_token_threshold is null or p.prompt_token_threshold < amount)
    order by x.place
    limit 1;
    if not found then
        return;
    end if;
    price_id := price.id;
    foreach is_prompt in array array[true, false] loop
        rest := coalesce(trunc(amount_of(usage, case when is_prompt then 'input_tokens' else 'output_tokens' end)), 0);
        details := usage -> (case when is_prompt then 'input_token_details' else 'output_token_details' end);
        prices := case when is_prompt then price.prompt_cost_details else price.completion_cost_details end;
        cost := 0;
        parts := null;
        if jsonb_typeof(details) = 'object' then
            if is_prompt then
                details := distinct_details(details);
                prices := complete_prices(prices);
            end if;
            for detail, detail_price in select * from jsonb_each_text(prices) loop
                amount := least(coalesce(trunc(amount_of(details, detail)), 0), rest);
                if amount > 0 then
                    rest := rest - amount;
                    amount := trim_scale(amount * detail_price::numeric);
                    cost := cost + amount;
                    parts := coalesce(parts, '{}') || jsonb_build_object(detail, amount::text);
                end if;
            end loop;
        end if;
        if is_prompt then
            prompt_cost := trim_scale(cost + rest * price.prompt_cost);
            prompt_cost_details := parts;
        else
            completion_cost := trim_scale(cost + rest * price.completion_cost);
            completion_cost_details := parts;
        end if;
    end loop;
    total_cost := trim_scale(prompt_cost + completion_cost);
end
$$;

-- Computes the costs of a model run when it is written.
create or replace function price_run() returns trigger
language plpgsql set search_path from current
as $$
declare
    costs record;
begin
    costs := costs_of_run(new.workspace_id, coalesce(new.start_time, new.received_at), new.extra, new.outputs);
    new.usage := costs.usage;
    new.model_provider := costs.model_provider;
    new.model_name := costs.model_name;
    new.prompt_cost := costs.prompt_cost;
    new.completion_cost := costs.completion_cost;
    new.total_cost := costs.total_cost;
    new.prompt_cost_details := costs.prompt_cost_details;
    new.completion_cost_details := costs.completion_cost_details;
    new.price_id := costs.price_id;
    return new;
end
$$;
