// Messages as agents keep and stream them: pieces are merged into whole messages, results of tools go to their calls.

import { isBranch } from "../../ui/Json";

export interface ToolCall {
  id: string;
  name: string;
  args: unknown;
}

export interface Message {
  id: string;
  type: string;
  content: unknown;
  name?: string | null;
  tool_calls?: ToolCall[];
  tool_call_id?: string;
  status?: string;
  // Of a run that was stopped or failed before a checkpoint had it.
  isUnsaved?: boolean;
  additional_kwargs?: Record<string, unknown>;
  response_metadata?: Record<string, unknown>;
  usage_metadata?: { input_tokens?: number; output_tokens?: number; total_tokens?: number } | null;
}

interface Chunk extends Message {
  tool_call_chunks?: { index?: number | null; id?: string | null; name?: string | null; args?: string | null }[];
  // Arguments of tool calls, as far as they have come.
  partial?: { id: string; name: string; args: string }[];
}

// What a conversation shows as one piece: a message, with the results of the tools that it calls.
export interface Item {
  message: Message;
  results: Map<string, Message>;
}

/** The messages of a state, or none if it has no conversation. */
export function getMessages(values: unknown): Message[] {
  const messages = isBranch(values) && "messages" in values ? values.messages : [];
  if (!Array.isArray(messages)) return [];

  return messages.filter(isBranch).map((each, index) => {
    const message = each as Message;
    return { ...message, type: getType(message.type), id: message.id ?? `at-${index}` };
  });
}

/** A streamed piece of a message, added to what came before. */
export function addChunk(before: Message | undefined, piece: Message): Message {
  const chunk = piece as Chunk;
  if (!chunk.type.endsWith("Chunk")) return { ...piece, type: getType(piece.type) };
  const old = before as Chunk | undefined;

  const partial = [...(old?.partial ?? [])];
  for (const each of chunk.tool_call_chunks ?? []) {
    const index = each.index ?? Math.max(partial.length - 1, 0);
    const call = partial[index];
    partial[index] = {
      id: each.id ?? call?.id ?? String(index),
      name: each.name ?? call?.name ?? "",
      args: (call?.args ?? "") + (each.args ?? ""),
    };
  }

  const message: Chunk = {
    ...chunk,
    type: getType(chunk.type),
    content: join(old?.content, chunk.content),
    partial,
    tool_calls: partial.filter(Boolean).map(({ id, name, args }) => ({ id, name, args: parseOrKeep(args) })),
  };

  return message;
}

function getType(type: string): string {
  return type.endsWith("Chunk") ? type.replace(/(Message)?Chunk$/, "").toLowerCase() : type;
}

function join(before: unknown, after: unknown): unknown {
  if (before === undefined || before === "") return after;
  if (after === undefined || after === "") return before;
  if (typeof before === "string" && typeof after === "string") return before + after;

  const blocks = asBlocks(before);
  for (const block of asBlocks(after)) {
    const last = blocks.at(-1);
    const field = block.type === "thinking" ? "thinking" : block.type === "reasoning" ? "reasoning" : "text";
    if (last && last.type === block.type && typeof last[field] === "string" && typeof block[field] === "string") {
      blocks[blocks.length - 1] = { ...last, [field]: last[field] + block[field] };
    } else blocks.push(block);
  }

  return blocks;
}

export type Block = Record<string, unknown>;

export function asBlocks(content: unknown): Block[] {
  if (typeof content === "string") return content ? [{ type: "text", text: content }] : [];
  if (!Array.isArray(content)) return isBranch(content) ? [content as Block] : [];
  return content.map((each) => (isBranch(each) ? (each as Block) : { type: "text", text: String(each) }));
}

function parseOrKeep(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Put the results of tools into the messages that called them. */
export function toItems(messages: Message[]): Item[] {
  const items: Item[] = [];
  const calls = new Map<string, Item>();
  for (const message of messages) {
    const caller = message.type === "tool" ? calls.get(message.tool_call_id ?? "") : undefined;
    if (caller) {
      caller.results.set(message.tool_call_id ?? "", message);
      continue;
    }

    const item: Item = { message, results: new Map() };
    for (const call of message.tool_calls ?? []) calls.set(call.id, item);
    items.push(item);
  }

  return items;
}

// The id of the call of a model, in the ids that LangChain gives to its messages.
const OF_MODEL_CALL = /^(?:lc_)?run-+([0-9a-f]{8}-[0-9a-f-]{27})/;

/** The call of the model that wrote a message, and when it began; ids of older versions of LangChain have no time. */
export function parseModelCall(messageId: string): { call?: string; beganAt?: number } {
  const [, call] = OF_MODEL_CALL.exec(messageId) ?? [];
  if (call === undefined) return {};
  if (call[14] !== "7") return { call };
  return { call, beganAt: Number.parseInt(call.slice(0, 8) + call.slice(9, 13), 16) };
}
