-- Expired feedback tokens are deleted, and found by this index: each run with feedback keys creates some.
-- Older versions run: an index changes no result.
create index feedback_tokens_by_expiry on feedback_tokens (expires_at);
