-- A project is in one workspace. Without knowing that the planner takes the runs of projects for a fraction of what they
-- are, and reads all of them where it could begin with the little feedback that they got.
create statistics runs_of_projects (dependencies) on workspace_id, project_id from runs;
analyze runs (workspace_id, project_id);
