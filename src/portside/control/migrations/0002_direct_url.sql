-- `custom_url` of the API is the public address, which the platform derives. The column holds the address at which the
-- listener says that the deployment answers, so it is named after that.
alter table deployments rename column custom_url to direct_url;
