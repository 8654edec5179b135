// Whether a platform serves these pages, or the one agent that `portside dev` runs.

const mark = document.querySelector<HTMLMetaElement>('meta[name="portside-agent"]');

/** The path before the routes of the one agent; null on a platform. */
export const ownAgent: string | null = mark ? mark.content : null;

/** Stands for the deployment's id in addresses where there is only one agent. */
export const OWN_ID = "own";

/** How often pages read graphs again: `portside dev` loads them anew after each change of a file. */
export const GRAPH_REFRESH = ownAgent === null ? {} : { everyMs: 2_000 };
