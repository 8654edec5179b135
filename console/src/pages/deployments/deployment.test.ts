import { expect, test } from "vitest";
import type { SourceRevisionConfig } from "../../api/platform";
import { describeCommit } from "./deployment";

const sha = "a1b2c3d4".repeat(5);

test.each([
  ["all of it", { repo_commit_subject: "Say hello", repo_commit_author: "Ada" }, " on main · Say hello, by Ada"],
  ["a listener of the version before", {}, " on main"],
  ["no message", { repo_commit_author: "Ada" }, " on main · by Ada"],
  ["no author", { repo_commit_subject: "Say hello" }, " on main · Say hello"],
  ["the default branch", { repo_ref: null, repo_commit_subject: "Say hello" }, " · Say hello"],
  ["a pinned commit", { repo_ref: sha, repo_commit_author: "Ada" }, " · by Ada"],
])("the description of a commit has what is known: %s", (_case, given: Partial<SourceRevisionConfig>, expected) => {
  const config: SourceRevisionConfig = {
    repo_ref: "main",
    graph_config_path: "langgraph.json",
    langgraph_config_path: "langgraph.json",
    repo_commit_sha: sha,
    image_uri: null,
    source_tarball_path: null,
    ...given,
  };

  expect(describeCommit(config)).toBe(expected);
});
