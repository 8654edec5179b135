-- How many replicas a deployment may have, where its owner has said so; null leaves it to its revisions and its type.
alter table deployments
    add min_scale int,
    add max_scale int,
    add queue_min_scale int,
    add queue_max_scale int;
