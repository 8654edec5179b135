-- Which member a person at an OpenID Connect provider is. The subject stays the same when the e-mail changes; a removed
-- member keeps the row, so that the next sign-in does not make a new member of the same person.
create table oidc_subjects (
    issuer text not null,
    subject text not null,
    user_id uuid not null references users (id),
    created_at timestamptz not null default now(),
    primary key (issuer, subject)
);

create unique index oidc_subjects_of_user on oidc_subjects (user_id, issuer);
