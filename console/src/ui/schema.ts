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
export function fieldsOf(schema: Schema | null | undefined): FormField[] {
  const properties = schema?.properties;
  if (!schema || !isBranch(properties)) return [];
  const required = Array.isArray(schema.required) ? schema.required : [];

  return Object.entries(properties).map(([name, found]) => {
    const field = resolve(found as Schema, schema);
    const choices = choicesOf(field);

    return {
      name,
      title: typeof field.title === "string" ? field.title : name,
      description: typeof field.description === "string" ? field.description : "",
      kind: choices.length > 0 ? "choice" : kindOf(field),
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
  const found = resolve(properties.messages as Schema, schema);
  return isConversation(found) || variantsOf(found).some((each) => isConversation(resolve(each, schema)));
}

// LangGraph marks the field for JavaScript; a graph in JavaScript without types says nothing but its name.
function isConversation(field: Schema): boolean {
  const isUntyped = field.type === undefined && choicesOf(field).length === 0 && variantsOf(field).length === 0;
  return field.type === "array" || field.langgraph_type === "messages" || isUntyped;
}

function resolve(field: Schema, root: Schema): Schema {
  let found = field;
  for (let depth = 0; depth < 10; depth += 1) {
    if (typeof found.$ref === "string") {
      const { $ref, ...own } = found;
      found = { ...lookUp(root, $ref as string), ...own };
      continue;
    }

    // A field that may also be null is a field that may be left out.
    const variants = variantsOf(found).filter((each) => each.type !== "null");
    const [only] = variants;
    if (variants.length !== 1 || only === undefined) return found;
    const { anyOf: _anyOf, oneOf: _oneOf, allOf: _allOf, ...own } = found;

    found = { ...only, ...own };
  }

  return found;
}

function variantsOf(field: Schema): Schema[] {
  const found = field.anyOf ?? field.oneOf ?? field.allOf;
  return Array.isArray(found) ? found.filter(isBranch).map((each) => each as Schema) : [];
}

function lookUp(root: Schema, reference: string): Schema {
  let found: unknown = root;
  for (const part of reference.replace(/^#\//, "").split("/")) {
    found = isBranch(found) ? (found as Schema)[part.replaceAll("~1", "/").replaceAll("~0", "~")] : undefined;
  }

  return isBranch(found) ? (found as Schema) : {};
}

function choicesOf(field: Schema): unknown[] {
  if (Array.isArray(field.enum)) return field.enum;
  const values = variantsOf(field).map((each) => ("const" in each ? each.const : undefined));
  return values.length > 0 && values.every((each) => each !== undefined) ? values : [];
}

function kindOf({ type }: Schema): Kind {
  if (type === "string") return "text";
  return type === "integer" || type === "number" || type === "boolean" ? type : "json";
}
