-- name: reserve
-- Takes :amount from a budget and opens a new window if none is open; returns no row if less is left. A window that ends
-- after :latest was created by a wrong clock, and would refuse requests until then.
insert into rate_windows as w (budget, ends_at, used)
values (:budget, :now::timestamptz + make_interval(secs => :seconds::int), :amount::int)
on conflict (budget) do update
    set used = case
            when w.ends_at <= :now::timestamptz or w.ends_at > :latest::timestamptz then excluded.used
            else w.used + excluded.used
        end,
        ends_at = case
            when w.ends_at <= :now::timestamptz or w.ends_at > :latest::timestamptz then excluded.ends_at
            else w.ends_at
        end
    where w.ends_at <= :now::timestamptz or w.ends_at > :latest::timestamptz
        or w.used + excluded.used <= :count::int
returning ends_at, used

-- name: read_window
-- After a refusal: when the budget is whole again.
select ends_at, used from rate_windows where budget = :budget and ends_at > :now::timestamptz

-- name: read_windows
-- For showing budgets; nothing is spent.
select budget, ends_at, used from rate_windows where budget = any(:budgets::bytea[]) and ends_at > :now::timestamptz

-- name: return_shares
-- Returns reserved requests that were not spent, unless their window has ended.
update rate_windows w set used = greatest(0, w.used - g.amount)
from unnest(:budgets::bytea[], :ends::timestamptz[], :amounts::int[]) as g (budget, ends_at, amount)
where w.budget = g.budget and w.ends_at = g.ends_at

-- name: delete_ended
-- In bounded batches, so that no request waits for it.
delete from rate_windows where budget in (
    select budget from rate_windows where ends_at <= :now::timestamptz order by ends_at limit 10000
)
