-- Who may call a deployment's agent with the platform's keys. The default is what every deployment allowed before: any key
-- of the workspace. `agent_roles` are the roles that 'roles' admits.
alter table deployments
    add column agent_access text not null default 'workspace',
    add column agent_roles text[] not null default '{}';
