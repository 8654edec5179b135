// The store of graphs. The server has the items, and the index that searches them by meaning.

import type { BaseStore, Item, Operation, OperationResults } from "@langchain/langgraph-checkpoint";
import type { Libraries } from "./libraries.js";
import type { Fields, Server } from "./server.js";
import { json } from "./values.js";

/** Make the store of this process, of the project's own base class. */
export function makeStore(libraries: Libraries, server: Server): BaseStore {
  class ServerStore extends libraries.checkpoint.BaseStore {
    override async batch<Op extends Operation[]>(operations: Op): Promise<OperationResults<Op>> {
      const results = (await server.call("store.batch", { ops: operations.map(encoded) })) as unknown[];
      return results.map((result, index) => decoded(operations[index] as Operation, result)) as OperationResults<Op>;
    }
  }

  // LangGraph gives nodes a store that collects operations. Its `listNamespaces` calls this method, which it lacks.
  const { AsyncBatchedStore } = libraries.checkpoint as unknown as { AsyncBatchedStore?: { prototype: Collecting } };
  if (AsyncBatchedStore !== undefined) {
    AsyncBatchedStore.prototype.batch = function (operations) {
      return this.store.batch(operations);
    };

    // It collects until the run ends: what a cancelled node that continues asks for after that would never be answered.
    const collect = AsyncBatchedStore.prototype.enqueueOperation;
    AsyncBatchedStore.prototype.enqueueOperation = async function (operation) {
      return this.isRunning ? collect.call(this, operation) : (await this.store.batch([operation]))[0];
    };
  }

  return new ServerStore();
}

interface Collecting {
  store: BaseStore;
  isRunning: boolean;
  enqueueOperation(operation: Operation): Promise<unknown>;
  batch(operations: Operation[]): Promise<unknown>;
}

/** Return the kind of an operation, and the JSON of its fields as the server names them. */
function encoded(operation: Operation): [string, Buffer] {
  const op = operation as unknown as Fields;
  if ("namespacePrefix" in op) {
    const { namespacePrefix, filter, limit, offset, query } = op;
    const fields = { namespace_prefix: namespacePrefix, filter, limit, offset, query };

    return [
      "search",
      json({ ...fields, filter: filter ?? null, limit: limit ?? 10, offset: offset ?? 0, query: query ?? null }),
    ];
  }

  if ("value" in op) {
    return ["put", json({ namespace: op.namespace, key: op.key, value: op.value ?? null, ...putOptions(op) })];
  }
  if ("namespace" in op && "key" in op) {
    return ["get", json({ namespace: op.namespace, key: op.key })];
  }

  const conditions = (op.matchConditions ?? []) as { matchType: string; path: string[] }[];

  return [
    "list",
    json({
      match_conditions: conditions.map(({ matchType, path }) => [matchType, path]),
      max_depth: op.maxDepth ?? null,
      limit: op.limit ?? 100,
      offset: op.offset ?? 0,
    }),
  ];
}

function putOptions(op: Fields): Fields {
  return { ...(op.index === undefined ? {} : { index: op.index }), ...(op.ttl === undefined ? {} : { ttl: op.ttl }) };
}

function decoded(operation: Operation, result: unknown): unknown {
  if ("namespacePrefix" in operation) {
    return (result as Fields[]).map(asItem);
  }
  if ("value" in operation) {
    return undefined;
  }

  return "key" in operation ? (result === null ? null : asItem(result as Fields)) : result;
}

function asItem(fields: Fields): Item {
  return {
    namespace: fields.namespace as string[],
    key: fields.key as string,
    value: JSON.parse(Buffer.from(fields.value as Uint8Array).toString("utf8")),
    createdAt: new Date(fields.created_at as string),
    updatedAt: new Date(fields.updated_at as string),
    ...(fields.score === undefined || fields.score === null ? {} : { score: fields.score }),
  } as Item;
}
