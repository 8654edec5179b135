// Values of states, as they are stored and as clients see them.
//
// They are stored as the Python executor stores them, so that the server reads both alike: MessagePack in which a
// message is its class and its fields. JSON has the same fields, in the same order. Other classes are stored by their
// names (`Set`, `Date`, …), or as the JSON of their `toJSON`.

import type { BaseMessage } from "@langchain/core/messages";
import type { Libraries } from "./libraries.js";
import { Extension, type FromExtension, Packer, unpack } from "./msgpack.js";

// The codes of langgraph's extension types in Python.
const [ONE, SEVERAL, METHOD, MODEL, SNAPSHOT] = [0, 1, 3, 5, 7] as const;
/** Module of classes that Python does not have: it reads the plain data in their place. */
const OURS = "javascript";

const CLASSES: Record<string, [module: string, name: string]> = {
  human: ["human", "HumanMessage"],
  ai: ["ai", "AIMessage"],
  system: ["system", "SystemMessage"],
  tool: ["tool", "ToolMessage"],
  function: ["function", "FunctionMessage"],
  remove: ["modifier", "RemoveMessage"],
  chat: ["chat", "ChatMessage"],
};

const MODULE = "langchain_core.messages.";

/** The views of binary data beside Uint8Array, which is what stored bytes are read as. */
const VIEWS: Record<string, new (buffer: ArrayBuffer) => ArrayBufferView> = {
  DataView,
  Int8Array,
  Uint8ClampedArray,
  Int16Array,
  Uint16Array,
  Int32Array,
  Uint32Array,
  Float32Array,
  Float64Array,
  BigInt64Array,
  BigUint64Array,
};

const MAX_DEPTH = 200;
const LONE_SURROGATE = /(?<!\\)((?:\\\\)*)\\ud[89a-f][0-9a-f]{2}/g;

type Fields = Record<string, unknown>;
// What is read of messages: the fields that all versions have.
type AnyMessage = BaseMessage &
  Fields & { lc_namespace?: unknown; tool_calls?: Fields[]; invalid_tool_calls?: unknown };

/** Whether a value is a message of LangChain, of any copy of the package. */
export function isMessage(value: object): value is AnyMessage {
  const { lc_namespace: namespace, _getType: type } = value as { lc_namespace?: unknown; _getType?: unknown };
  return typeof type === "function" && Array.isArray(namespace) && namespace[1] === "messages";
}

/** Whether a message is a piece of one. */
export function isChunk(message: object): boolean {
  return "concat" in message && typeof message.concat === "function";
}

function getType(message: AnyMessage): string {
  const type = message._getType() as string;
  return type === "generic" || type === "developer" ? "chat" : type;
}

/** Return the fields of a message as its JSON has them. A piece looks like the whole message that it is so far. */
export function messageFields(message: AnyMessage): Fields {
  const type = getType(message);
  const fields: Fields = {
    content: message.content ?? "",
    additional_kwargs: message.additional_kwargs ?? {},
    response_metadata: message.response_metadata ?? {},
    type,
    name: message.name ?? null,
    id: message.id ?? null,
  };

  if (type === "ai") {
    fields.tool_calls = (message.tool_calls ?? []).map(toolCall);
    fields.invalid_tool_calls = message.invalid_tool_calls ?? [];
    fields.usage_metadata = message.usage_metadata ?? null;
  } else if (type === "tool") {
    fields.tool_call_id = message.tool_call_id;
    fields.artifact = message.artifact ?? null;
    fields.status = message.status ?? "success";
  } else if (type === "chat") {
    fields.role = message.role ?? "developer";
  }

  return fields;
}

/** Return a piece of a message as the stream of messages has it. */
export function chunkFields(message: AnyMessage): Fields {
  const fields = messageFields(message);
  if (!isChunk(message)) {
    return fields;
  }

  const kind = CLASSES[fields.type as string];
  const whole = { ...fields, type: kind === undefined ? fields.type : `${kind[1]}Chunk` };
  return fields.type === "ai" ? { ...whole, tool_call_chunks: message.tool_call_chunks ?? [] } : whole;
}

function toolCall(call: Fields): Fields {
  return { name: call.name, args: call.args ?? {}, id: call.id ?? null, type: "tool_call" };
}

/** Return a value as plain JSON data; the value itself where it is that already. */
export function plain(value: unknown): unknown {
  return typeof value === "object" && value !== null ? plainObject(value, 0) : value;
}

/** Encode a value as JSON. Throws TypeError for one that contains itself. */
export function json(value: unknown): Buffer {
  return Buffer.from(jsonText(value), "utf8");
}

/** Return the JSON of a value, in which no half of a surrogate pair is alone: Python refuses those. */
export function jsonText(value: unknown): string {
  const text = JSON.stringify(plain(value), bigintAsNumber) ?? "null";
  return text.includes("\\ud") ? text.replace(LONE_SURROGATE, "$1\\ufffd") : text;
}

function bigintAsNumber(_key: string, value: unknown): unknown {
  return typeof value === "bigint" ? Number(value) : value;
}

function plainObject(value: object, depth: number): unknown {
  if (depth > MAX_DEPTH) {
    throw new TypeError("a value is nested too deeply, or contains itself");
  }
  if (Array.isArray(value)) {
    return mapped(value, depth);
  }

  const prototype = Object.getPrototypeOf(value);
  if (prototype !== Object.prototype && prototype !== null) {
    return plainInstance(value, depth);
  }

  return mappedRecord(value as Fields, depth);
}

/** Map the items of a list; return the list itself if none changes. */
function mapped(list: unknown[], depth: number): unknown[] {
  let copy: unknown[] | null = null;
  for (let index = 0; index < list.length; index++) {
    const item = list[index];
    const plainItem = typeof item === "object" && item !== null ? plainObject(item, depth + 1) : item;
    if (plainItem !== item && copy === null) {
      copy = list.slice();
    }

    if (copy !== null) {
      copy[index] = plainItem;
    }
  }

  return copy ?? list;
}

function mappedRecord(record: Fields, depth: number): Fields {
  let copy: Fields | null = null;
  for (const [key, part] of Object.entries(record)) {
    const plainValue = typeof part === "object" && part !== null ? plainObject(part, depth + 1) : part;
    if (plainValue !== part) {
      copy ??= { ...record };
      copy[key] = plainValue;
    }
  }

  return copy ?? record;
}

function plainInstance(value: object, depth: number): unknown {
  if (isMessage(value)) {
    return mappedRecord(messageFields(value), depth);
  }
  if (value instanceof Date) {
    return Number.isNaN(value.getTime()) ? null : value.toISOString();
  }

  if (value instanceof Set) {
    return mapped([...value], depth);
  }
  if (value instanceof Map) {
    return mappedRecord(Object.fromEntries(value), depth);
  }

  if (value instanceof Error) {
    return { name: value.name, message: value.message };
  }
  if (value instanceof ArrayBuffer || ArrayBuffer.isView(value)) {
    return isNumbers(value) ? [...value] : toBytes(value).toString("base64");
  }

  if (isSend(value)) {
    return { node: value.node, input: plainPart(value.args, depth) };
  }
  if (value instanceof RegExp) {
    return String(value);
  }

  if ("toJSON" in value && typeof value.toJSON === "function") {
    const jsonValue = value.toJSON();
    return jsonValue === value ? mappedRecord({ ...value }, depth) : plainPart(jsonValue, depth);
  }

  return mappedRecord({ ...value }, depth);
}

type Numbers = ArrayBufferView & Iterable<number | bigint>;

/** Whether a value is a typed array of numbers, and not of bytes. */
function isNumbers(value: object): value is Numbers {
  const isBytes = value instanceof Uint8Array || value instanceof DataView;
  return ArrayBuffer.isView(value) && !isBytes;
}

/** Return the bytes of a buffer or of a view of one. */
function toBytes(value: ArrayBuffer | ArrayBufferView): Buffer {
  return value instanceof ArrayBuffer
    ? Buffer.from(value)
    : Buffer.from(value.buffer, value.byteOffset, value.byteLength);
}

function plainPart(value: unknown, depth: number): unknown {
  return typeof value === "object" && value !== null ? plainObject(value, depth + 1) : value;
}

function isSend(value: object): value is { node: string; args: unknown; timeout?: unknown } {
  return "lg_name" in value && value.lg_name === "Send";
}

/** Whether a value is an object without a class, which is stored as a dict. */
export function isPlainRecord(value: unknown): value is Fields {
  if (typeof value !== "object" || value === null) {
    return false;
  }

  const prototype = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

/** Encode an instance of a class as an extension; null for plain data. */
function toExtension(value: object): Extension | null {
  if (isPlainRecord(value)) {
    return null;
  }

  if (isMessage(value)) {
    const fields = messageFields(value);
    const kind = CLASSES[fields.type as string];
    return kind === undefined
      ? new Extension(ONE, [OURS, "JSON", fields])
      : new Extension(MODEL, [MODULE + kind[0], kind[1], fields, "model_validate_json"]);
  }

  if (value instanceof Date && !Number.isNaN(value.getTime())) {
    return new Extension(METHOD, ["datetime", "datetime", value.toISOString().replace("Z", "+00:00"), "fromisoformat"]);
  }
  if (value instanceof Set) {
    return new Extension(ONE, ["builtins", "set", [...value]]);
  }

  if (value instanceof Map) {
    return new Extension(ONE, [OURS, "Map", [...value]]);
  }
  if (value instanceof RegExp) {
    return new Extension(ONE, [OURS, "RegExp", [value.source, value.flags]]);
  }

  if (value instanceof Error) {
    return new Extension(ONE, [OURS, "Error", { name: value.name, message: value.message }]);
  }

  if (isSend(value)) {
    const parts = value.timeout === undefined ? [value.node, value.args] : [value.node, value.args, value.timeout];
    return new Extension(SEVERAL, ["langgraph.types", "Send", parts]);
  }

  if ("lg_name" in value && value.lg_name === "DeltaSnapshot") {
    return new Extension(SNAPSHOT, (value as unknown as { value: unknown }).value);
  }
  if (value instanceof ArrayBuffer) {
    return new Extension(ONE, [OURS, "ArrayBuffer", toBytes(value)]);
  }

  const view = Object.keys(VIEWS).find((name) => value.constructor === VIEWS[name]);
  if (view !== undefined) {
    return new Extension(ONE, [OURS, view, toBytes(value as ArrayBufferView)]);
  }
  if (value instanceof Uint8Array || !("toJSON" in value) || typeof value.toJSON !== "function") {
    return null;
  }

  return new Extension(ONE, [OURS, "JSON", value.toJSON()]);
}

const packer = new Packer(toExtension);

/** Encode a value for a checkpoint. Throws TypeError for one that contains itself. */
export function encode(value: unknown): Buffer {
  return value === undefined ? packer.pack(new Extension(ONE, [OURS, "undefined", null])) : packer.pack(value);
}

/** Encode a part of a value as it is encoded inside of its list or dict. Throws TypeError if it contains itself. */
export function encodePart(value: unknown): Buffer {
  return packer.pack(value);
}

/** Decodes the values of checkpoints into instances of the project's classes. */
export class Decoder {
  constructor(private readonly libraries: Libraries) {}

  /** Decode a value. Throws RangeError for data that is not MessagePack. */
  decode(data: Uint8Array): unknown {
    return unpack(data, this.instance);
  }

  private readonly instance: FromExtension = (code, payload, decode) => {
    if (code === SEVERAL && isDigits(payload)) {
      return BigInt(Buffer.from(payload).toString("latin1"));
    }

    const parts = decode(payload);
    if (code === SNAPSHOT) {
      const { DeltaSnapshot } = this.libraries.checkpoint as unknown as Record<string, new (value: unknown) => unknown>;
      return DeltaSnapshot === undefined ? parts : new DeltaSnapshot(parts);
    }

    const [module, name, given] = parts as [string, string, unknown];
    if (code === MODEL && module.startsWith(MODULE)) {
      return this.message(given as Fields);
    }
    if (code === METHOD && module === "datetime") {
      return new Date(given as string);
    }

    if (code === SEVERAL && name === "Send") {
      const [node, args, timeout] = given as [string, unknown, unknown];
      const { Send } = this.libraries.graph as unknown as { Send: new (...parts: unknown[]) => unknown };
      return timeout === undefined ? new Send(node, args) : new Send(node, args, { timeout });
    }

    return module === OURS ? ours(name, given) : name === "set" ? new Set(given as unknown[]) : given;
  };

  /** Make a message of its fields. */
  message(fields: Fields): unknown {
    const { type, name, id, ...rest } = fields;
    const init = { ...rest, ...(name ? { name } : {}), ...(id ? { id } : {}) } as Fields;
    const classes = this.libraries.messages as unknown as Record<string, new (given: unknown) => unknown>;

    if (type === "ai" && init.usage_metadata === null) {
      delete init.usage_metadata;
    }

    const kind = CLASSES[type as string]?.[1];
    const Message = kind === undefined ? undefined : classes[kind];
    return Message === undefined ? init : new Message(init);
  }
}

/** Whether an extension is a large integer, which the packer writes as text: the others have a list. */
function isDigits(payload: Uint8Array): boolean {
  return (payload[0] ?? 0x80) < 0x80;
}

function ours(name: string, given: unknown): unknown {
  switch (name) {
    case "undefined":
      return undefined;
    case "Map":
      return new Map(given as [unknown, unknown][]);
    case "RegExp": {
      const [source, flags] = given as [string, string];
      return new RegExp(source, flags);
    }
    case "Error": {
      const { name: kind, message } = given as { name: string; message: string };
      return Object.assign(new Error(message), { name: kind });
    }
    case "ArrayBuffer":
      return copied(given as Uint8Array);
    default: {
      const View = VIEWS[name];
      return View === undefined ? given : new View(copied(given as Uint8Array));
    }
  }
}

/** Return bytes in a buffer of their own: those of a row share one, at any position. */
function copied(bytes: Uint8Array): ArrayBuffer {
  return new Uint8Array(bytes).buffer;
}
