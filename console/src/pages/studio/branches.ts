// The branches of a thread: its checkpoints are a tree, and each leaf is a conversation of its own.

import { callAgent } from "../../api/agent";
import type { ThreadState as State } from "../../api/agentServer";
import { readState } from "../threads/useThread";
import { getMessages } from "./messages";

// More checkpoints than this are not looked through.
const MOST = 1000;
const SELECT = ["checkpoint", "parent_checkpoint", "metadata", "created_at", "next"];

export interface Tree {
  // The checkpoints at which branches end, oldest first.
  leaves: string[];
  parents: Map<string, string | null>;
}

/** Read the tree of a thread's checkpoints, without values. Raises ApiError. */
export async function readTree(deploymentId: string, threadId: string, signal?: AbortSignal): Promise<Tree> {
  const states = await callAgent(
    deploymentId,
    "POST /threads/{thread_id}/history",
    { path: { thread_id: threadId }, body: { limit: MOST, select: SELECT } },
    signal,
  );

  return toTree(states);
}

function toTree(states: State[]): Tree {
  const parents = new Map<string, string | null>();
  const withChildren = new Set<string>();
  for (const state of states) {
    const [id, parent] = [state.checkpoint?.checkpoint_id, state.parent_checkpoint?.checkpoint_id ?? null];
    if (!id) continue;
    parents.set(id, parent);
    if (parent) withChildren.add(parent);
  }

  const leaves = [...parents.keys()].filter((id) => !withChildren.has(id)).reverse();
  return { leaves, parents };
}

/** The leaf of the branch that a checkpoint is on: the newest one that descends from it. */
export function getLeaf(tree: Tree, checkpoint: string): string | undefined {
  return tree.leaves.findLast((leaf) => getLine(tree, leaf).includes(checkpoint));
}

/** The checkpoints that led to one, from it back to the first. */
function getLine(tree: Tree, checkpoint: string): string[] {
  const line: string[] = [];
  for (let id: string | null | undefined = checkpoint; id && line.length <= MOST; id = tree.parents.get(id))
    line.push(id);

  return line;
}

/**
 * Find the checkpoint before the one in which a message first appears, which is where a run begins that replaces it.
 *
 * A message stays from its first checkpoint on, so a few states are enough: half of what is left each time.
 */
export async function checkpointBefore(
  deploymentId: string,
  threadId: string,
  tip: string,
  messageId: string,
): Promise<string | null> {
  const line = getLine(await readTree(deploymentId, threadId), tip).reverse();
  let [first, last] = [0, line.length - 1];
  while (first < last) {
    const middle = Math.floor((first + last) / 2);
    const state = await readState(deploymentId, threadId, line[middle]);
    if (getMessages(state.values).some((each) => each.id === messageId)) last = middle;
    else first = middle + 1;
  }

  return line[first - 1] ?? null;
}
