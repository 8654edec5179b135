import { type UseQueryResult, useQuery } from "@tanstack/react-query";
import { type ApiError, call } from "../../api/client";
import { useOffsetPages } from "../../api/pages";
import type { Commit, Manifest } from "../../api/platform";
import { useApi } from "../../api/queries";
import { useWorkspaceId } from "../../shell/session";

// The caller's own workspace, as an owner.
export const OWN = "-";

export function usePrompt(handle: string) {
  const path = { owner: OWN, repo: handle };
  const prompt = useApi("GET /repos/{owner}/{repo}", { path });
  const commits = useOffsetPages(
    "GET /commits/{owner}/{repo}",
    (slice) => ({ path, query: slice }),
    (page) => page.commits,
  );

  const tags = useApi("GET /repos/{owner}/{repo}/tags", { path });
  return { prompt, commits, tags };
}

/** One commit by its hash. It never changes, so that it is pulled, and counted as pulled, once. */
export function useCommit(handle: string, hash: string | undefined): UseQueryResult<Manifest, ApiError> {
  const workspace = useWorkspaceId();

  return useQuery<Manifest, ApiError>({
    queryKey: [workspace, "commit", handle, hash],
    queryFn: ({ signal }) =>
      call(
        "GET /commits/{owner}/{repo}/{commit}",
        { path: { owner: OWN, repo: handle, commit: hash ?? "" }, query: { include_model: true } },
        signal,
      ),
    enabled: hash !== undefined,
    staleTime: "static",
  });
}

/** The commit whose hash begins with a text. */
export function findCommit(commits: Commit[], hash: string): Commit | undefined {
  return commits.find((each) => each.commit_hash.startsWith(hash));
}
