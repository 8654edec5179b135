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
  const prompt = promptOf(manifest);
  if (prompt === null) return null;
  const kwargs = kwargsOf(prompt);
  const parts = Array.isArray(kwargs.messages) ? kwargs.messages : [prompt];
  const messages = parts.map(readMessage);
  if (messages.some((message) => message === null)) return null;
  const format = formatOf(parts);

  return {
    messages: messages as PromptMessage[],
    variables: variablesOf(messages as PromptMessage[], format),
    format,
    model: prompt === manifest ? null : kwargsOf(manifest).last,
  };
}

/** The manifest with these messages in place of its own, or a new prompt if there is none. */
export function writeManifest(before: unknown, messages: PromptMessage[]): Fields {
  const format = readManifest(before)?.format ?? "f-string";
  // A prompt of one text becomes a prompt of messages.
  const isKept = ({ raw }: PromptMessage) => raw !== null && className(raw) !== "PromptTemplate";
  const parts = messages.map((message) => (isKept(message) ? message.raw : writeMessage(message, format)));
  const variables = variablesOf(messages, format);
  if (before === null || before === undefined) return chat(parts, variables);
  const copy = structuredClone(before) as Fields;
  const prompt = promptOf(copy);
  if (prompt === null || !Array.isArray(kwargsOf(prompt).messages)) return chat(parts, variables);

  Object.assign(kwargsOf(prompt), { messages: parts, input_variables: variables });
  return copy;
}

/** The names that a caller fills in. */
export function variablesOf(messages: PromptMessage[], format: ReadPrompt["format"]): string[] {
  const found = new Set<string>();
  for (const { role, text, isFixed } of messages) {
    if (role === "placeholder") found.add(text);
    else if (!isFixed) for (const name of names(text, format)) found.add(name);
  }

  return [...found].filter(Boolean);
}

/** A prompt as lines of text, for comparison. */
export function linesOf(manifest: unknown): string[] {
  const prompt = readManifest(manifest);
  if (prompt === null) return JSON.stringify(manifest, null, 2).split("\n");
  const lines = prompt.messages.flatMap((message) => [`[${message.role}]`, ...shownText(message).split("\n"), ""]);
  return prompt.model ? [...lines, "[model]", ...JSON.stringify(prompt.model, null, 2).split("\n")] : lines;
}

export function shownText(message: PromptMessage): string {
  return message.isFixed ? JSON.stringify(message.raw, null, 2) : message.text;
}

function chat(messages: unknown[], variables: string[]): Fields {
  return node(["langchain", "prompts", "chat", "ChatPromptTemplate"], { messages, input_variables: variables });
}

// The prompt itself, or the first part of a prompt with a model.
function promptOf(manifest: unknown): Fields | null {
  const name = className(manifest);
  if (name === "RunnableSequence") return promptOf(kwargsOf(manifest).first);
  return name.endsWith("PromptTemplate") || name === "StructuredPrompt" ? (manifest as Fields) : null;
}

function readMessage(raw: unknown): PromptMessage | null {
  const name = className(raw);
  const role = ROLES[name];
  if (role === undefined) return null;
  const kwargs = kwargsOf(raw);
  const text = name === "PromptTemplate" ? kwargs.template : textOf(role, kwargs);
  const message = newMessage(role, typeof text === "string" ? text : "");

  return { ...message, raw, isFixed: typeof text !== "string" };
}

function textOf(role: Role, kwargs: Fields): unknown {
  if (role === "placeholder") return kwargs.variable_name;
  if ("content" in kwargs) return kwargs.content;
  return kwargsOf(kwargs.prompt).template;
}

function writeMessage({ role, text }: PromptMessage, format: ReadPrompt["format"]): Fields {
  if (role === "placeholder") {
    const kwargs = { variable_name: text, optional: true };
    return node(["langchain", "prompts", "chat", "MessagesPlaceholder"], kwargs);
  }

  const prompt = node(["langchain", "prompts", "prompt", "PromptTemplate"], {
    template: text,
    input_variables: names(text, format),
    template_format: format,
  });

  return node(["langchain", "prompts", "chat", TEMPLATES[role]], { prompt });
}

function formatOf(parts: unknown[]): ReadPrompt["format"] {
  for (const part of parts) {
    const { template_format: own } = kwargsOf(part);
    const format = own ?? kwargsOf(kwargsOf(part).prompt).template_format;
    if (format === "mustache" || format === "jinja2") return format;
  }

  return "f-string";
}

function names(text: string, format: ReadPrompt["format"]): string[] {
  const found = [...text.matchAll(VARIABLES[format])].map((match) => match[1] ?? "");
  return [...new Set(found.filter(Boolean))];
}

function node(id: string[], kwargs: Fields): Fields {
  return { lc: 1, type: "constructor", id, kwargs };
}

function className(value: unknown): string {
  const id = isFields(value) && isFields(value.kwargs) ? value.id : null;
  return Array.isArray(id) ? String(id.at(-1)) : "";
}

function kwargsOf(value: unknown): Fields {
  return isFields(value) && isFields(value.kwargs) ? value.kwargs : {};
}

function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
