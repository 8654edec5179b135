-- Repositories of agents and skills hold files. Each of their commits stores the whole tree in its manifest: `{"files": {path: entry}}`.
-- Older versions run: they show every repository as a prompt, and ignore the type.
alter table prompt_repos add column repo_type text not null default 'prompt'
    check (repo_type in ('prompt', 'agent', 'skill'));
