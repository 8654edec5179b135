// The checkpointer of graphs: checkpoints as rows and back. The server stores the rows, and encrypts them.
//
// The columns and their forms are those of `portside/executor/checkpoints/rows.py`. The kind of a body says that a
// JavaScript graph wrote it, so that a graph of the other language refuses the thread.

import { AsyncLocalStorage } from "node:async_hooks";
import { randomBytes } from "node:crypto";
import type { RunnableConfig } from "@langchain/core/runnables";
import type {
  BaseCheckpointSaver,
  Checkpoint,
  CheckpointListOptions,
  CheckpointMetadata,
  CheckpointTuple,
  PendingWrite,
} from "@langchain/langgraph-checkpoint";
import type { Libraries } from "./libraries.js";
import { type Stored, ValuePieces } from "./pieces.js";
import { currentWork, type Fields, type Rows, type Server } from "./server.js";
import { Decoder, encode, jsonText } from "./values.js";

type Versions = Record<string, string | number>;
type Config = RunnableConfig & { configurable?: Fields; metadata?: Fields };

/** The kind of bodies that JavaScript graphs write. */
const KIND = "javascript";
const VALUE_KIND = "msgpack";
const PAGE = 100;
/** The source of a checkpoint whose run was deleted: it stays only for the channels that are stored as changes. */
const DELETED = "deleted";
const TASKS = "__pregel_tasks";
/** The first version of checkpoints whose tasks are among their values. */
const FIRST_WITH_TASKS = 4;
const INLINE_CHARACTERS = 256;

const WRITE_INDEXES: Record<string, number> = {
  __error__: -1,
  __scheduled__: -2,
  __interrupt__: -3,
  __resume__: -4,
};

const EXCLUDED = new Set([
  "thread_id",
  "checkpoint_id",
  "checkpoint_ns",
  "checkpoint_map",
  "langgraph_checkpoint_ns",
  "langgraph_node",
  "langgraph_path",
  "langgraph_step",
  "langgraph_triggers",
  "writes",
]);

// The step of its parent graph that a subgraph's checkpoint belongs to.
const OF_SUBGRAPHS = ["langgraph_node", "langgraph_path", "langgraph_step", "langgraph_triggers"];
// The caller and the request of a run are not stored with the thread's state.
const OF_REQUESTS = ["langgraph_auth_", "langgraph_request_id", "graph_auth_", "graph_request_id"];

/** The thread was written by a graph of the other language. */
export class OtherLanguage extends Error {
  override name = "OtherLanguage";

  constructor() {
    super("A graph in another language began this thread, and only such a graph can continue it; use a new thread.");
  }
}

/** Make the checkpointer of this process, of the project's own base class. */
export function makeSaver(libraries: Libraries, server: Server): BaseCheckpointSaver {
  const decoder = new Decoder(libraries);
  const isReplaying = new AsyncLocalStorage<boolean>();

  class ServerSaver extends libraries.checkpoint.BaseCheckpointSaver<string> {
    // The random suffix keeps two branches of a thread from sharing a version.
    override getNextVersion(current: string | undefined): string {
      const number = current === undefined ? 1 : Number.parseInt(String(current), 10) + 1;
      return `${String(number).padStart(10, "0")}.${randomBytes(4).toString("hex")}`;
    }

    async getTuple(config: RunnableConfig): Promise<CheckpointTuple | undefined> {
      if (config.configurable?.thread_id === undefined) {
        return undefined;
      }

      const { threadId, checkpointNs, checkpointId } = names(config);
      const row = await server.read(threadId, checkpointNs, checkpointId);
      if (row === null || ((row.metadata as Fields).source === DELETED && isReplaying.getStore() !== true)) {
        return undefined;
      }

      const saved = await this.tuple(row);
      // Now, because the graph may change the values.
      const { channel_values: values, channel_versions: versions } = saved.checkpoint;
      currentWork.getStore()?.pieces.read(row, values, versions);

      return saved;
    }

    /** Return the changes of channels that are stored as such, also those of deleted runs. */
    override async getDeltaChannelHistory(
      options: Parameters<BaseCheckpointSaver["getDeltaChannelHistory"]>[0],
    ): ReturnType<BaseCheckpointSaver["getDeltaChannelHistory"]> {
      return isReplaying.run(true, () => super.getDeltaChannelHistory(options));
    }

    /** Return the checkpoint of a row, with the tasks that an older version of LangGraph stored with its parent. */
    private async tuple(row: Fields): Promise<CheckpointTuple> {
      const saved = tuple(decoder, row);
      const { checkpoint } = saved;
      if (checkpoint.v >= FIRST_WITH_TASKS || !row.parent_id) {
        return saved;
      }

      const parent = await server.read(String(row.thread_id), String(row.checkpoint_ns), String(row.parent_id));
      const writes = parent === null ? [] : (tuple(decoder, parent).pendingWrites ?? []);

      const tasks = writes.filter(([, channel]) => channel === TASKS).map(([, , value]) => value);
      if (tasks.length > 0) {
        const versions = Object.values(checkpoint.channel_versions).map(String).sort();
        checkpoint.channel_values[TASKS] = tasks;
        checkpoint.channel_versions[TASKS] = versions.at(-1) ?? this.getNextVersion(undefined);
      }

      return saved;
    }

    async *list(config: RunnableConfig, options: CheckpointListOptions = {}): AsyncGenerator<CheckpointTuple> {
      const configurable = config.configurable ?? {};
      const query: Fields = {
        thread_id: configurable.thread_id === undefined ? null : String(configurable.thread_id),
        checkpoint_ns: configurable.checkpoint_ns ?? null,
        checkpoint_id: configurable.checkpoint_id ?? null,
        before: options.before?.configurable?.checkpoint_id ?? null,
        filter: options.filter === undefined ? null : jsonb(options.filter),
      };

      let remaining = options.limit ?? Number.POSITIVE_INFINITY;
      while (remaining > 0) {
        const size = Math.min(remaining, PAGE);
        const rows = (await server.operate("list", { ...query, page_size: size })) as Fields[];
        for (const row of rows) {
          yield await this.tuple(row);
        }

        const last = rows[rows.length - 1];
        if (last === undefined || rows.length < size) {
          return;
        }

        remaining -= size;
        query.after_id = last.checkpoint_id;
        query.after_thread = last.thread_id;
        query.after_ns = last.checkpoint_ns;
      }
    }

    async put(
      config: RunnableConfig,
      checkpoint: Checkpoint,
      metadata: CheckpointMetadata,
      newVersions: Versions,
    ): Promise<RunnableConfig> {
      const { threadId, checkpointNs } = names(config);
      await server.put(threadId, checkpointNs, checkpointRows(config, checkpoint, metadata, newVersions));
      return {
        configurable: { thread_id: threadId, checkpoint_ns: checkpointNs, checkpoint_id: checkpoint.id },
      };
    }

    async putWrites(config: RunnableConfig, writes: PendingWrite[], taskId: string, taskPath = ""): Promise<void> {
      const { threadId, checkpointNs } = names(config);
      // Encrypted writes are whole: they are decrypted as one.
      const rows = writeRows(config, writes, [taskId, taskPath], { cuts: !server.isEncrypted });
      if (rows.writes.length > 0) {
        await server.put(threadId, checkpointNs, rows);
      }
    }

    async deleteThread(threadId: string): Promise<void> {
      await server.operate("delete_threads", [threadId]);
    }
  }

  return new ServerSaver() as unknown as BaseCheckpointSaver;
}

/** Return what a config names. Throws Error without a thread. */
function names(config: RunnableConfig): { threadId: string; checkpointNs: string; checkpointId: string | null } {
  const { thread_id: threadId, checkpoint_ns: checkpointNs, checkpoint_id: checkpointId } = config.configurable ?? {};
  if (threadId === undefined || threadId === null) {
    throw new Error("a checkpointed graph needs config.configurable.thread_id");
  }

  return { threadId: String(threadId), checkpointNs: checkpointNs ?? "", checkpointId: checkpointId || null };
}

/** Return the row of a checkpoint and the rows of the values that it changed. */
function checkpointRows(
  config: Config,
  checkpoint: Checkpoint,
  metadata: CheckpointMetadata,
  newVersions: Versions,
): Rows {
  const { threadId, checkpointNs, checkpointId } = names(config);
  const { channel_values: values, channel_versions: versions } = checkpoint;
  const inline: Fields = {};
  const channels: string[] = [];
  for (const [channel, value] of Object.entries(values)) {
    if (checkpointId === null && !(channel in newVersions)) {
      // The first checkpoint of a thread has no values but its new ones.
    } else if (isShort(value)) {
      inline[channel] = value;
    } else if (channel in versions) {
      channels.push(channel);
    }
  }

  const body = encode({ ...checkpoint, channel_values: inline });
  const rows: Rows = { checkpoints: [], values: [], pieces: [], writes: [], size: body.length };
  rows.checkpoints.push([
    threadId,
    checkpointNs,
    checkpoint.id,
    checkpointId,
    metadataJson(config, metadata),
    KIND,
    body,
    textArray(channels),
    textArray(channels.map((channel) => String(versions[channel]))),
  ]);

  const pieces = currentWork.getStore()?.pieces ?? new ValuePieces();
  const changes = Object.fromEntries(channels.map((channel) => [channel, values[channel]]));
  const name = { threadId, checkpointNs, parentId: checkpointId, id: checkpoint.id };
  for (const [channel, value] of pieces.encode(name, changes, { all: versions, new: newVersions })) {
    const version = String(newVersions[channel]);
    rows.values.push([threadId, checkpointNs, channel, version, VALUE_KIND, value.data, value.ranges, null]);
    addPieces(rows, threadId, value);
  }

  return rows;
}

function addPieces(rows: Rows, threadId: string, value: Stored): void {
  rows.size += value.data.length;
  for (const piece of value.pieces) {
    rows.pieces.push([threadId, ...piece]);
    rows.size += piece[3].length;
  }
}

function isShort(value: unknown): boolean {
  return (
    value === null ||
    typeof value === "boolean" ||
    typeof value === "number" ||
    (typeof value === "string" && value.length <= INLINE_CHARACTERS)
  );
}

/**
 * Return the rows of the writes of a task.
 *
 * Of a cancelled task only its special writes are stored: with some of its output langgraph would take it for finished.
 */
function writeRows(
  config: Config,
  writes: PendingWrite[],
  [taskId, taskPath]: [id: string, path: string],
  { cuts }: { cuts: boolean },
): Rows {
  const { threadId, checkpointNs, checkpointId } = names(config);
  const runId = currentWork.getStore()?.run?.[0] ?? config.configurable?.run_id ?? config.metadata?.run_id ?? null;
  const rows: Rows = { checkpoints: [], values: [], pieces: [], writes: [], size: 0 };
  const name = { threadId, checkpointNs, checkpointId };
  const pieces = (cuts ? currentWork.getStore()?.pieces : undefined) ?? new ValuePieces();
  const isCancelled = writes.some(([channel, value]) => channel === "__error__" && isAbort(value));

  writes.forEach(([channel, value], number) => {
    const index = WRITE_INDEXES[channel];
    if (isCancelled && index === undefined) {
      return;
    }

    const encodedWrite = pieces.encodeWrite(name, channel, value);
    rows.writes.push([
      threadId,
      checkpointNs,
      checkpointId,
      taskId,
      index ?? number,
      taskPath,
      runId === null ? null : String(runId),
      channel,
      VALUE_KIND,
      encodedWrite.data,
      encodedWrite.ranges,
      null,
    ]);

    addPieces(rows, threadId, encodedWrite);
  });

  return rows;
}

function isAbort(error: unknown): boolean {
  const { name, message } = (error ?? {}) as { name?: unknown; message?: unknown };
  return name === "AbortError" || message === "Abort" || message === "Aborted";
}

/** Encode the metadata of a checkpoint, with the fields that the run's config adds. */
function metadataJson(config: Config, metadata: CheckpointMetadata): string {
  const work = currentWork.getStore();
  const complete: Fields = { ...metadata };
  const sources = [work?.metadata, work?.configurable];
  for (const fields of sources) {
    for (const [key, value] of Object.entries(fields ?? {})) {
      if (!(key in complete) && !EXCLUDED.has(key) && !key.startsWith("__") && isPlainScalar(value)) {
        complete[key] = value;
      }
    }
  }

  for (const key of Object.keys(complete)) {
    if (key === "writes" || OF_REQUESTS.some((prefix) => key.startsWith(prefix))) {
      delete complete[key];
    }
  }

  if (config.configurable?.checkpoint_ns) {
    for (const key of OF_SUBGRAPHS) {
      const value = config.metadata?.[key];
      if (value !== undefined) {
        complete[key] = value;
      }
    }
  }

  return jsonb(complete);
}

function isPlainScalar(value: unknown): boolean {
  return typeof value === "string" || typeof value === "number" || typeof value === "boolean";
}

/** Encode a value as JSON for a `jsonb` column, which stores no NUL characters. */
function jsonb(value: unknown): string {
  const text = jsonText(value);
  return text.includes("\\u0000") ? text.replace(/(?<!\\)((?:\\\\)*)\\u0000/g, "$1\\ufffd") : text;
}

/** Encode texts as an array of Postgres. */
function textArray(texts: string[]): string {
  return `{${texts.map((text) => `"${text.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`).join(",")}}`;
}

/** Return the checkpoint of a row. Throws OtherLanguage. */
function tuple(decoder: Decoder, row: Fields): CheckpointTuple {
  if (row.kind !== KIND) {
    throw new OtherLanguage();
  }

  const checkpoint = decoder.decode(row.body as Uint8Array) as Checkpoint;
  const datas = (row.value_datas ?? []) as Uint8Array[];
  ((row.value_channels ?? []) as string[]).forEach((channel, index) => {
    checkpoint.channel_values[channel] = decoder.decode(datas[index] as Uint8Array);
  });

  const [tasks, written] = [(row.write_tasks ?? []) as string[], (row.write_datas ?? []) as Uint8Array[]];
  const channels = (row.write_channels ?? []) as string[];
  const ids = { thread_id: row.thread_id, checkpoint_ns: row.checkpoint_ns };

  return {
    config: { configurable: { ...ids, checkpoint_id: row.checkpoint_id } },
    checkpoint,
    metadata: row.metadata as CheckpointMetadata,
    parentConfig: row.parent_id ? { configurable: { ...ids, checkpoint_id: row.parent_id } } : undefined,
    pendingWrites: tasks.map((task, index) => [
      task,
      channels[index] as string,
      decoder.decode(written[index] as Uint8Array),
    ]),
  };
}
