-- Feedback and attachments of runs that never arrive are deleted by the time of their receipt. `modified_at` of feedback is
-- the client's. Rows of before count as received now, so that none of them is deleted too early.
-- Older versions run: the columns have defaults, and an index changes no result.
alter table feedback add column received_at timestamptz not null default now();
alter table attachments add column received_at timestamptz not null default now();

create index feedback_by_receipt on feedback (received_at) where run_id is not null;
create index attachments_by_receipt on attachments (received_at);
