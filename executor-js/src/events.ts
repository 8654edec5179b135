// Encodes the events of one run, and joins the pieces of its messages.

import type { Fields } from "./server.js";
import { chunkFields, isChunk, isMessage, json, messageFields } from "./values.js";

const CHECKPOINT_KEYS = ["checkpoint_id", "thread_id", "checkpoint_ns", "checkpoint_map"];
/** The key in `configurable` of a run that was started over the event streaming protocol. */
const STREAM_PROTOCOL = "__stream_protocol__";
/** The modes that the server makes the channels of that protocol from. */
const CHANNEL_MODES = ["updates", "messages", "custom", "tasks", "checkpoints", "tools"];
/** What the server takes for items of a mode to make channels from: `&mode|namespace`. */
const FOR_CHANNELS = "&";
const UNFOLLOWED_DELAY_MS = 100;
const UNFOLLOWED_LIMIT_BYTES = 256 * 1024;
/** An item is about this large, or one event: items of other runs come between. */
const ITEM_BYTES = 1024 * 1024;

/** An event as clients receive it: its name and its JSON. */
export type Emitted = [event: string, data: Buffer];
type Message = Parameters<typeof messageFields>[0];

/** The modes that LangGraph must stream, and what each of its items is for clients. */
export class EventEncoder {
  private readonly modes: Set<string>;
  private readonly hasChannels: boolean;
  private readonly partial = new Map<string, Message>();
  /** The modes that LangGraph must stream: those requested, and always the values, for the outcome. */
  readonly streamed: Set<string>;

  constructor(modes: string[], configurable: Fields) {
    this.modes = new Set(modes.length > 0 ? modes : ["values"]);
    this.hasChannels = Boolean(configurable[STREAM_PROTOCOL]);
    const requested = [...this.modes].filter((mode) => mode !== "events");
    const streamModes = requested.map((mode) => (mode === "messages-tuple" ? "messages" : mode));

    this.streamed = new Set(["values", ...streamModes, ...(this.hasChannels ? CHANNEL_MODES : [])]);
  }

  /** Yield the events for one item of LangGraph's stream. */
  *encode(namespace: string[], mode: string, payload: unknown): Generator<Emitted> {
    const suffix = ["", ...namespace].join("|");
    if (mode === "messages") {
      yield* this.message(suffix, payload as [Message, Fields]);
    } else if (this.modes.has(mode)) {
      yield [mode + suffix, json(mode === "debug" ? withCheckpoints(payload as Fields) : payload)];
    }

    if (this.hasChannels && CHANNEL_MODES.includes(mode)) {
      yield [FOR_CHANNELS + mode + suffix, json(forChannels(mode, payload))];
    }
  }

  private *message(suffix: string, [message, metadata]: [Message, Fields]): Generator<Emitted> {
    if (this.modes.has("messages-tuple")) {
      yield [`messages${suffix}`, json([chunkFields(message), metadata])];
    } else if (this.modes.has("messages")) {
      yield* this.wholeMessage(message, metadata);
    }
  }

  private *wholeMessage(message: Message, metadata: Fields): Generator<Emitted> {
    const id = String(message.id);
    const before = this.partial.get(id);
    if (before === undefined) {
      yield ["messages/metadata", json({ [id]: { metadata } })];
    }

    if (!isChunk(message)) {
      this.partial.set(id, message);
      yield ["messages/complete", json([message])];
      return;
    }

    const isGrowing = before !== undefined && isChunk(before);
    const whole = isGrowing ? (before as unknown as { concat(piece: Message): Message }).concat(message) : message;
    this.partial.set(id, whole);
    yield ["messages/partial", json([messageFields(whole)])];
  }
}

/**
 * Sends the events of a run: all that are emitted in one turn of the event loop are one item.
 *
 * Those of a run that nobody follows wait for a moment, because most such runs have ended by then.
 */
export class EventBatches {
  private waiting: Emitted[] = [];
  private size = 0;
  private isScheduled = false;
  private isOpen: boolean;
  private readonly opening: NodeJS.Timeout | undefined;

  constructor(
    private readonly call: { send(item: unknown): void },
    isUnfollowed: boolean,
  ) {
    this.isOpen = !isUnfollowed;
    this.opening = isUnfollowed ? setTimeout(() => this.open(), UNFOLLOWED_DELAY_MS) : undefined;
  }

  /** Add an event. */
  add(event: Emitted): void {
    this.waiting.push(event);
    this.size += event[1].length;
    this.isOpen ||= this.size > UNFOLLOWED_LIMIT_BYTES;

    if (this.size > ITEM_BYTES) {
      this.send();
    } else if (this.isOpen && !this.isScheduled) {
      this.isScheduled = true;
      // With what else happens in this turn.
      setImmediate(() => this.send());
    }
  }

  /** Send what waits: the result follows. */
  close(): void {
    clearTimeout(this.opening);
    this.send();
  }

  private open(): void {
    this.isOpen = true;
    this.send();
  }

  private send(): void {
    const events = this.waiting;
    this.waiting = [];
    this.size = 0;
    this.isScheduled = false;

    if (events.length > 0) {
      this.call.send(events);
    }
  }
}

function forChannels(mode: string, payload: unknown): unknown {
  if (mode === "messages") {
    const [message, metadata] = payload as [Message, Fields];
    return [isMessage(message) ? chunkFields(message) : message, metadata];
  }

  if (mode === "checkpoints") {
    const { metadata, config, parentConfig, parent_config: parent } = payload as Fields;
    return { metadata, config: named(config), parent_config: named(parent ?? parentConfig) };
  }

  return payload;
}

function named(config: unknown): Fields | null {
  const checkpoint = toCheckpoint(config);
  return checkpoint === null ? null : { configurable: checkpoint };
}

/** Return the checkpoint of a config, as clients see it, or null. */
export function toCheckpoint(config: unknown): Fields | null {
  const { configurable = {} } = (config ?? {}) as { configurable?: Fields };
  const keys = CHECKPOINT_KEYS.filter((key) => configurable[key] !== undefined);
  return keys.length === 0 ? null : Object.fromEntries(keys.map((key) => [key, configurable[key]]));
}

/** Write the checkpoints of a debug event as the rest of the API does. */
function withCheckpoints(payload: Fields): Fields {
  if (payload.type !== "checkpoint") {
    return payload;
  }

  const { parentConfig, config, ...step } = payload.payload as Fields;
  const parent = parentConfig ?? step.parent_config;
  const task = {
    ...step,
    config: withoutCallbacks(config),
    checkpoint: toCheckpoint(config),
    parent_checkpoint: toCheckpoint(parent),
    parent_config: withoutCallbacks(parent),
    tasks: ((step.tasks ?? []) as Fields[]).map(withCheckpoint),
  };

  return { ...payload, payload: task };
}

function withoutCallbacks(config: unknown): Fields | null {
  if (config === undefined || config === null) {
    return null;
  }

  const { callbacks: _, ...rest } = config as Fields;
  return rest;
}

function withCheckpoint(task: Fields): Fields {
  const checkpoint = toCheckpoint(task.state);
  if (checkpoint === null) {
    return task;
  }

  const { state: _, ...rest } = task;
  return { ...rest, checkpoint };
}
