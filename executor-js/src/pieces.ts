// Long lists of checkpoints, in pieces that the versions of a channel share (docs/why/long-threads.md).
//
// The bytes of a list are a header and its items. A new version reuses the pieces of the version before whose items have
// the same bytes, and stores only the others. The layout is that of `portside/executor/checkpoints/pieces.py`, which
// cuts dicts as well.

import { randomBytes } from "node:crypto";
import { encode, isMessage, plain } from "./values.js";

// A shorter value is stored whole: several rows would cost more than what they share.
const MIN_BYTES = 4096;
// Items are collected in a piece up to this size.
const PIECE_BYTES = 1024;
// A value of shorter items is stored whole: comparing them takes longer than writing them.
const MIN_ITEM_BYTES = 32;
const MAX_RANGES = 48;
// A run may read other checkpoints between its own.
const RECENT = 3;

interface Piece {
  series: number;
  number: number;
  /** The bytes of each item. */
  leaves: Buffer[];
}

/** How a value is stored: whole, or as a header with ranges of pieces, of which some are new. */
export interface Stored {
  data: Buffer;
  /** An array of Postgres with three numbers for each range; null for a whole value. */
  ranges: string | null;
  /** The series, the number, the count of items and the bytes of each new piece. */
  pieces: [series: number, number: number, leaves: number, data: Buffer][];
}

/** A version of a list that is stored in pieces, and the items that it was made of. */
interface CutList {
  items: unknown[];
  pieces: Piece[];
}

/** What the next version of a value can share with: pieces, or the bytes of a whole one. */
type Known = CutList | Buffer;
type Row = Record<string, unknown>;

interface KnownValues {
  channels: Map<string, Known>;
  versions: Map<string, string>;
}

/** The long values of the checkpoints that one run reads and writes. */
export class KnownLists {
  private readonly checkpoints = new Map<string, KnownValues>();
  // The number that each series of this run continues with.
  private readonly next = new Map<number, number>();

  /** Encode the values of a checkpoint that are new in it, and remember all of them for the next one. */
  encode(
    name: { checkpointNs: string; parentId: string | null; id: string },
    values: Record<string, unknown>,
    versions: { all: Record<string, string | number>; new: Record<string, string | number> },
  ): Map<string, Stored> {
    const before = this.checkpoints.get(key(name.checkpointNs, name.parentId))?.channels;
    const stored = new Map<string, Stored>();
    const channels = new Map<string, Known>();
    for (const [channel, value] of Object.entries(values)) {
      const similar = before?.get(channel);
      if (!(channel in versions.new)) {
        if (similar !== undefined) {
          channels.set(channel, similar);
        }
        continue;
      }
      const [how, known] = this.store(value, similar);
      stored.set(channel, how);
      if (known !== undefined) {
        channels.set(channel, known);
      }
    }
    if (channels.size > 0 || before !== undefined) {
      const named = [...channels.keys()].map((channel) => [channel, String(versions.all[channel])] as const);
      this.remember(key(name.checkpointNs, name.id), { channels, versions: new Map(named) });
    }
    return stored;
  }

  /** Remember the long values of a checkpoint that was read from a row. */
  read(row: Row, values: Record<string, unknown>, versions: Record<string, string | number>): void {
    const columns = ["value_channels", "value_datas", "value_pieces", "value_sizes"] as const;
    const [names, datas, ranges, sizes] = columns.map((column) => (row[column] ?? []) as unknown[]);
    const channels = new Map<string, Known>();
    names?.forEach((name, index) => {
      const channel = name as string;
      const data = datas?.[index] as Buffer;
      const known = readKnown(values[channel], data, ranges?.[index] as string | null, sizes?.[index] as Buffer | null);
      if (known !== null) {
        channels.set(channel, known);
      }
    });
    if (channels.size > 0) {
      const named = [...channels.keys()].map((channel) => [channel, String(versions[channel])] as const);
      const place = key(row.checkpoint_ns as string, row.checkpoint_id as string);
      this.remember(place, { channels, versions: new Map(named) });
    }
  }

  /** Return the versions of those values that are lists in pieces of the last checkpoint, by their keys. */
  longLists(values: Record<string, unknown>): Record<string, string> {
    const last = [...this.checkpoints].filter(([place]) => place.startsWith("\n")).at(-1)?.[1];
    const found: Record<string, string> = {};
    for (const [channel, known] of last?.channels ?? []) {
      const value = values[channel];
      if (!Buffer.isBuffer(known) && Array.isArray(value) && isSame(known.items, value)) {
        found[channel] = last?.versions.get(channel) as string;
      }
    }
    return found;
  }

  private remember(place: string, known: KnownValues): void {
    this.checkpoints.delete(place);
    this.checkpoints.set(place, known);
    if (this.checkpoints.size > RECENT) {
      this.checkpoints.delete(this.checkpoints.keys().next().value as string);
    }
  }

  private store(value: unknown, before: Known | undefined): [Stored, Known | undefined] {
    if (Array.isArray(value) && before !== undefined && !Buffer.isBuffer(before)) {
      const cut = this.cut(value, before.pieces);
      if (cut !== null) {
        return cut;
      }
    }
    const data = encode(value);
    const whole: Stored = { data, ranges: null, pieces: [] };
    if (!isWorthCutting(value, data)) {
      return [whole, undefined];
    }
    if (Buffer.isBuffer(before) && shareHalf(before, data)) {
      const cut = this.cut(value as unknown[], null);
      if (cut !== null) {
        return cut;
      }
    }
    return [whole, data];
  }

  private cut(value: unknown[], before: Piece[] | null): [Stored, CutList] | null {
    const leaves = value.map((item) => encode(item));
    const size = leaves.reduce((sum, leaf) => sum + leaf.length, 0);
    if (size < MIN_BYTES || size < MIN_ITEM_BYTES * leaves.length) {
      return null;
    }
    const { pieces, fresh } = this.match(leaves, before ?? []);
    const added = fresh.reduce((sum, piece) => sum + bytesOf(piece), 0);
    if (before !== null && 2 * added > size) {
      return null;
    }
    const ranges = rangesOf(pieces);
    if (ranges.length > 3 * MAX_RANGES) {
      // Too many to read them quickly: written again as one.
      return this.cut(value, null);
    }
    const stored: Stored = {
      data: headerOf(value.length),
      ranges: `{${ranges.join(",")}}`,
      pieces: fresh.map((piece) => [piece.series, piece.number, piece.leaves.length, Buffer.concat(piece.leaves)]),
    };
    return [stored, { items: value.slice(), pieces }];
  }

  /** Return the pieces of the items, and those of them that are new. */
  private match(leaves: Buffer[], before: Piece[]): { pieces: Piece[]; fresh: Piece[] } {
    const pieces: Piece[] = [];
    const fresh: Piece[] = [];
    let waiting: Buffer[] = [];
    let waitingBytes = 0;
    let byFirst: Map<string, number> | null = null;
    const flush = () => {
      if (waiting.length > 0) {
        const piece = { ...this.placeAfter(pieces.at(-1)), leaves: waiting };
        pieces.push(piece);
        fresh.push(piece);
        waiting = [];
        waitingBytes = 0;
      }
    };
    let expected = 0;
    for (let at = 0; at < leaves.length; ) {
      let found = [expected, expected + 1].find((index) => holds(before[index], leaves, at));
      if (found === undefined && before.length > 0) {
        byFirst ??= new Map(before.map((piece, index) => [nameOf(piece.leaves[0] as Buffer), index]));
        const other = byFirst.get(nameOf(leaves[at] as Buffer));
        found = other !== undefined && holds(before[other], leaves, at) ? other : undefined;
      }
      if (found === undefined) {
        const leaf = leaves[at++] as Buffer;
        waiting.push(leaf);
        waitingBytes += leaf.length;
        if (waitingBytes >= PIECE_BYTES) {
          flush();
        }
        continue;
      }
      flush();
      const piece = before[found] as Piece;
      pieces.push(piece);
      at += piece.leaves.length;
      expected = found + 1;
    }
    flush();
    return { pieces, fresh };
  }

  /** Return the place of a new piece: after this one if its series ends there, else in a new series. */
  private placeAfter(before: Piece | undefined): { series: number; number: number } {
    if (before !== undefined && this.next.get(before.series) === before.number + 1) {
      this.next.set(before.series, before.number + 2);
      return { series: before.series, number: before.number + 1 };
    }
    const series = randomBytes(6).readUIntBE(0, 6);
    this.next.set(series, 1);
    return { series, number: 0 };
  }
}

function key(checkpointNs: string, id: string | null): string {
  return `${checkpointNs}\n${id ?? ""}`;
}

function bytesOf(piece: Piece): number {
  return piece.leaves.reduce((sum, leaf) => sum + leaf.length, 0);
}

function nameOf(leaf: Buffer): string {
  return leaf.toString("latin1");
}

function holds(piece: Piece | undefined, leaves: Buffer[], at: number): boolean {
  return piece?.leaves.every((leaf, index) => leaves[at + index]?.equals(leaf)) ?? false;
}

function headerOf(count: number): Buffer {
  if (count < 16) {
    return Buffer.from([0x90 | count]);
  }
  const header = Buffer.alloc(count < 0x10000 ? 3 : 5);
  header[0] = count < 0x10000 ? 0xdc : 0xdd;
  header.writeUIntBE(count, 1, header.length - 1);
  return header;
}

/** Return three numbers for each range of pieces: its series, its first number, and the number after its last. */
function rangesOf(pieces: Piece[]): number[] {
  const ranges: number[] = [];
  for (const { series, number } of pieces) {
    const last = ranges.length - 1;
    if (last > 0 && ranges[last - 2] === series && ranges[last] === number) {
      ranges[last] = number + 1;
    } else {
      ranges.push(series, number, number + 1);
    }
  }
  return ranges;
}

function isWorthCutting(value: unknown, data: Buffer): boolean {
  return Array.isArray(value) && data.length >= MIN_BYTES && data.length >= MIN_ITEM_BYTES * value.length;
}

/** Whether half of a value is at the beginning or at the end of another, apart from the headers. */
function shareHalf(before: Buffer, data: Buffer): boolean {
  const half = Math.min(before.length, data.length) >> 1;
  return (
    before.subarray(5, half).equals(data.subarray(5, half)) ||
    before.subarray(-half).equals(data.subarray(-half)) ||
    data.subarray(0, half + 16).includes(before.subarray(8, half))
  );
}

/** Return what the next version of a list that was read can share with; null for nothing. */
function readKnown(value: unknown, data: Buffer, ranges: string | null, sizes: Buffer | null): Known | null {
  if (!isWorthCutting(value, data)) {
    return null;
  }
  if (ranges === null || sizes === null) {
    return data;
  }
  const items = value as unknown[];
  const numbers = ranges.replace(/[{}]/g, "").split(",").map(Number);
  const pieces: Piece[] = [];
  let [taken, at, index] = [0, headerOf(items.length).length, 0];
  for (let range = 0; range + 2 < numbers.length; range += 3) {
    for (let number = numbers[range + 1] as number; number < (numbers[range + 2] as number); number++, index++) {
      const [size, count] = [sizes.readInt32BE(8 * index), sizes.readInt32BE(8 * index + 4)];
      const leaves = items.slice(taken, taken + count).map((item) => encode(item));
      if (count === 0 || !Buffer.concat(leaves).equals(data.subarray(at, at + size))) {
        return null;
      }
      pieces.push({ series: numbers[range] as number, number, leaves });
      taken += count;
      at += size;
    }
  }
  return taken === items.length ? { items: items.slice(), pieces } : null;
}

/** Whether a list has the same items, all of which are messages or plain data: these are read again with the same JSON. */
function isSame(known: unknown[], value: unknown[]): boolean {
  return (
    known.length === value.length &&
    known.every((item, index) => {
      const isObject = typeof item === "object" && item !== null;
      return item === value[index] && (!isObject || isMessage(item) || plain(item) === item);
    })
  );
}
