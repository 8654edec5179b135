-- Older versions run: the columns may be null, and nothing else reads them.
-- The name of the author and the first line of the message of the commit that a revision was built from.
alter table revisions
    add column repo_commit_author text check (length(repo_commit_author) <= 200),
    add column repo_commit_subject text check (length(repo_commit_subject) <= 200);
