// JSON schemas as forms need them: references resolved, and each field with the kind of its control.

import { isBranch } from "./Json";

export type Schema = Record<string, unknown>;
type Kind = "text" | "integer" | "number" | "boolean" | "choice" | "json";

export interface FormField {
  name: string;
  title: string;
  description: string;
  kind: Kind;
  choices: unknown[];
  isRequired: boolean;
  preset: unknown;
}

/** The fields of an object's schema. */
export function getFields(schema: Schema | null | undefined): FormField[] {
  const properties = schema?.properties;
  if (!schema || !isBranch(properties)) return [];
  const required = Array.isArray(schema.required) ? schema.required : [];

  return Object.entries(properties).map(([name, found]) => {
    const field = resolve(found as Schema, schema);
    const choices = getChoices(field);

    return {
      name,
      title: typeof field.title === "string" ? field.title : name,
      description: typeof field.description === "string" ? field.description : "",
      kind: choices.length > 0 ? "choice" : getKind(field),
      choices,
      isRequired: required.includes(name),
      preset: field.default,
    };
  });
}

/** Whether the schema's input is a conversation. */
export function hasMessages(schema: Schema | null | undefined): boolean {
  const properties = schema?.properties;
  if (!schema || !isBranch(properties) || !("messages" in properties)) return false;
  const messages = resolve(properties.messages as Schema, schema);
  return isConversation(messages) || getVariants(messages).some((each) => isConversation(resolve(each, schema)));
}

// LangGraph marks the field for JavaScript; a graph in JavaScript without types says nothing but its name.
function isConversation(field: Schema): boolean {
  const isUntyped = field.type === undefined && getChoices(field).length === 0 && getVariants(field).length === 0;
  return field.type === "array" || field.langgraph_type === "messages" || isUntyped;
}

function resolve(field: Schema, root: Schema): Schema {
  let resolved = field;
  for (let depth = 0; depth < 10; depth += 1) {
    if (typeof resolved.$ref === "string") {
      const { $ref, ...own } = resolved;
      resolved = { ...lookUp(root, $ref as string), ...own };
      continue;
    }

    // A field that may also be null is a field that may be left out.
    const variants = getVariants(resolved).filter((each) => each.type !== "null");
    const [only] = variants;
    if (variants.length !== 1 || only === undefined) return resolved;
    const { anyOf: _anyOf, oneOf: _oneOf, allOf: _allOf, ...own } = resolved;

    resolved = { ...only, ...own };
  }

  return resolved;
}

function getVariants(field: Schema): Schema[] {
  const variants = field.anyOf ?? field.oneOf ?? field.allOf;
  return Array.isArray(variants) ? variants.filter(isBranch).map((each) => each as Schema) : [];
}

function lookUp(root: Schema, reference: string): Schema {
  let value: unknown = root;
  for (const part of reference.replace(/^#\//, "").split("/")) {
    value = isBranch(value) ? (value as Schema)[part.replaceAll("~1", "/").replaceAll("~0", "~")] : undefined;
  }

  return isBranch(value) ? (value as Schema) : {};
}

function getChoices(field: Schema): unknown[] {
  if (Array.isArray(field.enum)) return field.enum;
  const values = getVariants(field).map((each) => ("const" in each ? each.const : undefined));
  return values.length > 0 && values.every((each) => each !== undefined) ? values : [];
}

function getKind({ type }: Schema): Kind {
  if (type === "string") return "text";
  return type === "integer" || type === "number" || type === "boolean" ? type : "json";
}
