// The JSON schemas of graphs: of what they declare at run time, such as zod schemas and annotations.

import type { Graph } from "./project.js";
import type { Fields } from "./server.js";

/** The schemas of a graph; null where there is none. */
export interface GraphSchemas {
  input_schema: Fields | null;
  output_schema: Fields | null;
  state_schema: Fields | null;
  config_schema: Fields | null;
  context_schema: Fields | null;
}

const NONE: GraphSchemas = {
  input_schema: null,
  output_schema: null,
  state_schema: null,
  config_schema: null,
  context_schema: null,
};

/** Reads the schemas of the project's graphs. */
export class Schemas {
  async of(_id: string, _graph: Graph): Promise<GraphSchemas> {
    return NONE;
  }

  async ofSubgraph(_id: string, _name: string, _graph: Graph): Promise<GraphSchemas> {
    return NONE;
  }
}
