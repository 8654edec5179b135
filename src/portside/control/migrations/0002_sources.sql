-- Images and uploaded archives beside git: what a deployment comes from is no longer a repository in every case, and all
-- that a revision is made of is kept with the revision, so that it can be served again later.

-- A Kubernetes listener is made by a client before it connects for the first time.
alter table listeners
    add compute_config jsonb not null default '{}',
    alter last_seen_at drop not null,
    alter last_seen_at drop default;

-- `listener_id` and `asked_url` are the user's words; `held_by` and `custom_url` are where it runs and answers.
-- `secrets_sealed` holds, sealed for the deployment's id, what was given before there is a first revision.
alter table deployments
    alter repo_url drop not null,
    add listener_id uuid references listeners (id),
    add k8s_namespace text,
    add asked_url text,
    add secrets_sealed bytea;

-- `is_built` says that the revision's build was finished once, so that it can be served again without another one;
-- `built_from` is the revision whose build that is.
alter table revisions
    alter repo_ref drop not null,
    alter graph_config_path drop not null,
    add image_uri text,
    add image_version text,
    add source_tarball_path text,
    add install_command text,
    add build_command text,
    add resource_spec jsonb,
    add secret_references jsonb,
    add built_from uuid,
    add is_built boolean not null default false;

update revisions r set
    install_command = d.install_command,
    build_command = d.build_command,
    is_built = r.status in ('AWAITING_DEPLOY', 'DEPLOYING', 'DEPLOYED', 'DEPLOY_FAILED')
from deployments d where d.id = r.deployment_id;
