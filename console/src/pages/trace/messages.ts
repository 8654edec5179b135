// Messages of a conversation as clients trace them: serialized messages of LangChain, states of LangGraph, and requests
// and answers of model providers.

interface ToolCall {
  name: string;
  args: unknown;
}

export interface Message {
  role: "human" | "ai" | "system" | "tool" | "other";
  title: string;
  text: string;
  toolCalls: ToolCall[];
  // Parts that are not text: images, files, citations.
  others: unknown[];
}

type Fields = Record<string, unknown>;

const ROLES: Record<string, Message["role"]> = {
  human: "human",
  user: "human",
  humanmessage: "human",
  ai: "ai",
  assistant: "ai",
  model: "ai",
  aimessage: "ai",
  aimessagechunk: "ai",
  system: "system",
  developer: "system",
  systemmessage: "system",
  tool: "tool",
  function: "tool",
  toolmessage: "tool",
  functionmessage: "tool",
};

const TITLES: Record<Message["role"], string> = {
  human: "Human",
  ai: "Assistant",
  system: "System",
  tool: "Tool",
  other: "Message",
};

const PLACES = ["messages", "output", "input", "message", "choices", "generations", "response"];
const MAX_DEPTH = 5;

// The messages in a value, wherever the usual clients put them; null if there are none.
export function findMessages(value: unknown, depth = 0): Message[] | null {
  if (depth > MAX_DEPTH || !isObject(value)) return null;

  if (Array.isArray(value)) {
    if (value.length === 0) return null;
    // One list of messages for each request of a batch.
    if (Array.isArray(value[0])) return findMessages(value[0], depth + 1);
    const messages = value.map(parseMessage);
    if (messages.every((message) => message !== null)) return messages;

    return value.length === 1 ? findMessages(value[0], depth + 1) : null;
  }

  const own = parseMessage(value);
  if (own) return [own];

  for (const place of PLACES) {
    const messages = place in value ? findMessages((value as Fields)[place], depth + 1) : null;
    if (messages) return messages;
  }

  return null;
}

function parseMessage(raw: unknown): Message | null {
  if (!isObject(raw) || Array.isArray(raw)) return null;
  const fields = raw as Fields;
  const { lc, kwargs, data, type, id } = fields;
  if (lc !== undefined && isObject(kwargs) && Array.isArray(id)) return made(String(id.at(-1)), kwargs as Fields);
  if (typeof type === "string" && isObject(data) && "content" in data) return made(type, data as Fields);
  const role = fields.role ?? type;

  return typeof role === "string" && ("content" in fields || "tool_calls" in fields || "parts" in fields)
    ? made(role, fields)
    : null;
}

function made(kind: string, fields: Fields): Message | null {
  const role = ROLES[kind.toLowerCase()] ?? (fields.role === undefined ? null : "other");
  if (role === null) return null;
  const name = typeof fields.name === "string" && fields.name ? fields.name : null;
  const title = role === "other" ? kind : name ? `${TITLES[role]} · ${name}` : TITLES[role];
  const message: Message = { role, title, text: "", toolCalls: [], others: [] };

  addContent(message, fields.content ?? fields.parts);
  const extra = isObject(fields.additional_kwargs) ? (fields.additional_kwargs as Fields).tool_calls : undefined;
  const calls = Array.isArray(fields.tool_calls) && fields.tool_calls.length ? fields.tool_calls : extra;
  if (Array.isArray(calls) && calls.length) message.toolCalls = calls.map(parseToolCall);

  return message;
}

function addContent(message: Message, content: unknown) {
  if (typeof content === "string") message.text = content;
  if (!Array.isArray(content)) return;

  const texts: string[] = [];
  for (const block of content) {
    if (typeof block === "string") texts.push(block);
    else if (!isObject(block)) message.others.push(block);
    else {
      const fields = block as Fields;
      if (typeof fields.text === "string") texts.push(fields.text);
      else if (fields.type === "tool_use") message.toolCalls.push({ name: String(fields.name), args: fields.input });
      else message.others.push(block);
    }
  }

  message.text = texts.join("\n\n");
}

function parseToolCall(raw: unknown): ToolCall {
  const fields = isObject(raw) ? (raw as Fields) : {};
  const called = isObject(fields.function) ? (fields.function as Fields) : fields;
  const args = called.args ?? called.arguments;
  return { name: String(called.name ?? "tool"), args: typeof args === "string" ? parseOrKeep(args) : args };
}

export function parseOrKeep(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function isObject(value: unknown): value is object {
  return typeof value === "object" && value !== null;
}
