-- The lists that the values of a delivery lack, as in `threads`: a run that ended without values left those of the run before.
alter table webhook_deliveries add column long_values jsonb;
