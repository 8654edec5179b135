-- Older versions run: the column has a default, and without it threads go on with the newest code.
-- For how many hours threads go on with the revision that began them, after it was replaced; 0 is not at all.
alter table deployments add column pin_threads double precision not null default 0;
