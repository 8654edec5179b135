// The leaves of lists and dicts that are stored in pieces: items, entries, and the headers of what is opened inside.

import { isKept } from "./msgpack.js";
import { encodePart, isMessage, isPlainRecord, messageFields } from "./values.js";

export type Container = unknown[] | Fields;
export type Fields = Record<string, unknown>;

/** An entry of a dict. */
export class Entry {
  constructor(
    readonly key: string,
    readonly value: unknown,
  ) {}
}

/** The key and the header of a list or dict whose items are leaves of their own. */
export class Opener {
  constructor(
    readonly path: string,
    readonly data: Buffer,
  ) {}
}

export function isContainer(value: unknown): value is Container {
  return Array.isArray(value) || isPlainRecord(value);
}

/** Return the items of a list, or the entries of a dict. */
export function getLeaves(value: Container): unknown[] {
  if (Array.isArray(value)) {
    return value;
  }

  return Object.entries(value).flatMap(([key, part]) => (isKept(part) ? [new Entry(key, part)] : []));
}

export function encodeLeaf(leaf: unknown): Buffer {
  if (leaf instanceof Opener) {
    return leaf.data;
  }

  // A dict of one has a header of one byte.
  return leaf instanceof Entry ? encodePart({ [leaf.key]: leaf.value }).subarray(1) : encodePart(leaf);
}

export function joinPath(path: string, entry: Entry): string {
  return `${path}\n${entry.key}`;
}

export function makeHeader(count: number, isList: boolean): Buffer {
  if (count < 16) {
    return Buffer.from([(isList ? 0x90 : 0x80) | count]);
  }

  const header = Buffer.alloc(count < 0x10000 ? 3 : 5);
  header[0] = (isList ? 0xdc : 0xde) + (count < 0x10000 ? 0 : 1);
  header.writeUIntBE(count, 1, header.length - 1);

  return header;
}

/** Return what finds the same leaf in another version. */
export function getName(leaf: unknown): unknown {
  if (leaf instanceof Entry) {
    return `entry ${leaf.key}`;
  }

  return leaf instanceof Opener ? `opener ${leaf.path}` : leaf;
}

/** Return the fields of a message, by which a later change of it is noticed; null for anything else. */
export function getMark(leaf: unknown): Fields | null {
  if (typeof leaf !== "object" || leaf === null || !isMessage(leaf)) {
    return null;
  }

  const fields = messageFields(leaf);
  // A list or dict can change inside: a message that has any with content is compared by its bytes.
  return Object.values(fields).every((field) => isPrimitive(field) || isEmpty(field)) ? fields : null;
}

/** Whether a leaf is what it was; null if only its bytes can tell. */
export function isUnchanged(known: unknown, mark: Fields | null, leaf: unknown): boolean | null {
  if (known instanceof Entry || leaf instanceof Entry) {
    if (!(known instanceof Entry && leaf instanceof Entry) || known.key !== leaf.key) {
      return false;
    }

    return isPrimitive(leaf.value) && Object.is(known.value, leaf.value) ? true : null;
  }

  if (known instanceof Opener || leaf instanceof Opener) {
    return known instanceof Opener && leaf instanceof Opener && known.data.equals(leaf.data);
  }
  if (mark === null || typeof leaf !== "object" || leaf === null || !isMessage(leaf)) {
    return isPrimitive(leaf) && Object.is(known, leaf) ? true : null;
  }

  const now = messageFields(leaf);

  // The lists and dicts of the mark were empty, and may have content by now.
  const isSameField = (name: string) =>
    isPrimitive(mark[name])
      ? Object.is(now[name], mark[name])
      : isEmpty(now[name]) && Array.isArray(now[name]) === Array.isArray(mark[name]);

  return Object.keys(now).length === Object.keys(mark).length && Object.keys(mark).every(isSameField) ? true : null;
}

function isPrimitive(value: unknown): boolean {
  return value === null || (typeof value !== "object" && typeof value !== "function");
}

function isEmpty(value: unknown): boolean {
  return isContainer(value) && getLeaves(value).length === 0;
}
