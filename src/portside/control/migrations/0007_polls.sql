-- When the branch of a deployment that builds on push was last looked at, and which commit was its newest. A branch other
-- than the one that was seen is looked at anew.
create table branch_polls (
    deployment_id uuid primary key references deployments (id) on delete cascade,
    looked_at timestamptz not null,
    seen_ref text,
    seen_commit text,
    failure text
);
