// A prompt as clients store it: a tree of constructors. What the editor does not know stays as it is.

type Fields = Record<string, unknown>;

export type Role = "ai" | "human" | "placeholder" | "system";

export interface PromptMessage {
  // Tells messages apart while they are edited.
  key: number;
  role: Role;
  text: string;
  // What was stored; null for a message that is new or changed.
  raw: unknown;
  // Images and other content that a text field cannot hold; such a message is kept as it is.
  isFixed: boolean;
}

export interface ReadPrompt {
  messages: PromptMessage[];
  variables: string[];
  format: "f-string" | "jinja2" | "mustache";
  model: unknown;
}

const ROLES: Record<string, Role> = {
  SystemMessagePromptTemplate: "system",
  SystemMessage: "system",
  HumanMessagePromptTemplate: "human",
  HumanMessage: "human",
  PromptTemplate: "human",
  ChatMessagePromptTemplate: "human",
  AIMessagePromptTemplate: "ai",
  AIMessage: "ai",
  MessagesPlaceholder: "placeholder",
};

const TEMPLATES: Record<Exclude<Role, "placeholder">, string> = {
  system: "SystemMessagePromptTemplate",
  human: "HumanMessagePromptTemplate",
  ai: "AIMessagePromptTemplate",
};

const VARIABLES = {
  "f-string": /\{\{|\}\}|\{([A-Za-z_][\w.]*)[^{}]*\}/g,
  mustache: /\{\{[{#^&]?\s*([A-Za-z_][\w.]*)\s*\}?\}\}/g,
  jinja2: /\{\{\s*([A-Za-z_]\w*)[^}]*\}\}/g,
};

let lastKey = 0;

export function newMessage(role: Role, text = ""): PromptMessage {
  lastKey += 1;
  return { key: lastKey, role, text, raw: null, isFixed: false };
}

/** Read the messages of a manifest; null for one that is no prompt of messages or of one text. */
export function readManifest(manifest: unknown): ReadPrompt | null {
  const prompt = findPrompt(manifest);
  if (prompt === null) return null;
  const kwargs = getKwargs(prompt);
  const parts = Array.isArray(kwargs.messages) ? kwargs.messages : [prompt];
  const messages = parts.map(readMessage);
  if (messages.some((message) => message === null)) return null;
  const format = getFormat(parts);

  return {
    messages: messages as PromptMessage[],
    variables: getVariables(messages as PromptMessage[], format),
    format,
    model: prompt === manifest ? null : getKwargs(manifest).last,
  };
}

/** The manifest with these messages in place of its own, or a new prompt if there is none. */
export function writeManifest(before: unknown, messages: PromptMessage[]): Fields {
  const format = readManifest(before)?.format ?? "f-string";
  // A prompt of one text becomes a prompt of messages.
  const isKept = ({ raw }: PromptMessage) => raw !== null && className(raw) !== "PromptTemplate";
  const parts = messages.map((message) => (isKept(message) ? message.raw : writeMessage(message, format)));
  const variables = getVariables(messages, format);
  if (before === null || before === undefined) return chat(parts, variables);
  const copy = structuredClone(before) as Fields;
  const prompt = findPrompt(copy);
  if (prompt === null || !Array.isArray(getKwargs(prompt).messages)) return chat(parts, variables);

  Object.assign(getKwargs(prompt), { messages: parts, input_variables: variables });
  return copy;
}

/** The names that a caller fills in. */
export function getVariables(messages: PromptMessage[], format: ReadPrompt["format"]): string[] {
  const variables = new Set<string>();
  for (const { role, text, isFixed } of messages) {
    if (role === "placeholder") variables.add(text);
    else if (!isFixed) for (const name of findNames(text, format)) variables.add(name);
  }

  return [...variables].filter(Boolean);
}

/** A prompt as lines of text, for comparison. */
export function toLines(manifest: unknown): string[] {
  const prompt = readManifest(manifest);
  if (prompt === null) return JSON.stringify(manifest, null, 2).split("\n");
  const lines = prompt.messages.flatMap((message) => [`[${message.role}]`, ...displayText(message).split("\n"), ""]);
  return prompt.model ? [...lines, "[model]", ...JSON.stringify(prompt.model, null, 2).split("\n")] : lines;
}

export function displayText(message: PromptMessage): string {
  return message.isFixed ? JSON.stringify(message.raw, null, 2) : message.text;
}

function chat(messages: unknown[], variables: string[]): Fields {
  return node(["langchain", "prompts", "chat", "ChatPromptTemplate"], { messages, input_variables: variables });
}

// The prompt itself, or the first part of a prompt with a model.
function findPrompt(manifest: unknown): Fields | null {
  const name = className(manifest);
  if (name === "RunnableSequence") return findPrompt(getKwargs(manifest).first);
  return name.endsWith("PromptTemplate") || name === "StructuredPrompt" ? (manifest as Fields) : null;
}

function readMessage(raw: unknown): PromptMessage | null {
  const name = className(raw);
  const role = ROLES[name];
  if (role === undefined) return null;
  const kwargs = getKwargs(raw);
  const text = name === "PromptTemplate" ? kwargs.template : toText(role, kwargs);
  const message = newMessage(role, typeof text === "string" ? text : "");

  return { ...message, raw, isFixed: typeof text !== "string" };
}

function toText(role: Role, kwargs: Fields): unknown {
  if (role === "placeholder") return kwargs.variable_name;
  if ("content" in kwargs) return kwargs.content;
  return getKwargs(kwargs.prompt).template;
}

function writeMessage({ role, text }: PromptMessage, format: ReadPrompt["format"]): Fields {
  if (role === "placeholder") {
    const kwargs = { variable_name: text, optional: true };
    return node(["langchain", "prompts", "chat", "MessagesPlaceholder"], kwargs);
  }

  const prompt = node(["langchain", "prompts", "prompt", "PromptTemplate"], {
    template: text,
    input_variables: findNames(text, format),
    template_format: format,
  });

  return node(["langchain", "prompts", "chat", TEMPLATES[role]], { prompt });
}

function getFormat(parts: unknown[]): ReadPrompt["format"] {
  for (const part of parts) {
    const { template_format: own } = getKwargs(part);
    const format = own ?? getKwargs(getKwargs(part).prompt).template_format;
    if (format === "mustache" || format === "jinja2") return format;
  }

  return "f-string";
}

function findNames(text: string, format: ReadPrompt["format"]): string[] {
  const names = [...text.matchAll(VARIABLES[format])].map((match) => match[1] ?? "");
  return [...new Set(names.filter(Boolean))];
}

function node(id: string[], kwargs: Fields): Fields {
  return { lc: 1, type: "constructor", id, kwargs };
}

function className(value: unknown): string {
  const id = isFields(value) && isFields(value.kwargs) ? value.id : null;
  return Array.isArray(id) ? String(id.at(-1)) : "";
}

function getKwargs(value: unknown): Fields {
  return isFields(value) && isFields(value.kwargs) ? value.kwargs : {};
}

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
