// A deployment in words: its name, where its code is from, and where it answers.

import type { Deployment, Revision, SourceRevisionConfig } from "../../api/platform";

export function getName(deployment: Deployment): string {
  return deployment.display_name ?? deployment.name;
}

export function getAddress(deployment: Deployment): string | null {
  return deployment.source_config.custom_url || null;
}

export function getOrigin(deployment: Deployment): string {
  const { repo_url } = deployment.source_config;
  const { repo_ref, image_uri } = deployment.source_revision_config;
  if (image_uri) return image_uri;
  if (repo_url) return repo_ref ? `${shortAddress(repo_url)} @ ${repo_ref}` : shortAddress(repo_url);
  return "uploaded folder";
}

function shortAddress(url: string): string {
  return url.replace(/^https?:\/\//, "").replace(/\.git$/, "");
}

// What stands behind a commit's short id: " on main · Say hello, by Ada". Older listeners report neither text.
export function describeCommit(config: SourceRevisionConfig): string {
  const { repo_ref, repo_commit_subject, repo_commit_author } = config;
  const branch = repo_ref && repo_ref !== config.repo_commit_sha ? ` on ${repo_ref}` : "";
  const subject = repo_commit_subject ? ` · ${repo_commit_subject}` : "";
  if (!repo_commit_author) return branch + subject;
  return `${branch}${subject}${subject ? "," : " ·"} by ${repo_commit_author}`;
}

export function getCode(revision: Revision): string {
  const { repo_commit_sha, repo_ref, image_uri, source_tarball_path } = revision.source_revision_config;
  if (image_uri) return image_uri;
  if (repo_commit_sha) return repo_ref ? `${repo_commit_sha.slice(0, 8)} on ${repo_ref}` : repo_commit_sha.slice(0, 8);
  if (source_tarball_path) return "uploaded folder";
  return repo_ref ?? "–";
}
