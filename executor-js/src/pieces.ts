// Long lists and dicts of checkpoints, in pieces that the versions of a channel share (docs/why/long-threads.md).
//
// The layout is that of `portside/executor/checkpoints/pieces.py`: a value is a header and its items or entries, of
// which some form a piece. A new version reuses the pieces of the version before that are unchanged, and stores only
// the others. A list or dict inside of a dict is opened where it is long: its header is a piece, and its items are in
// pieces too.

import { randomBytes } from "node:crypto";
import {
  type Container,
  Entry,
  encodeLeaf,
  type Fields,
  getLeaves,
  getMark,
  getName,
  isContainer,
  isUnchanged,
  joinPath,
  makeHeader,
  Opener,
} from "./leaves.js";
import { encode, isMessage, plain } from "./values.js";

// A shorter value is stored whole: several rows would cost more than what they share.
const MIN_BYTES = 4096;
// Items are collected in a piece up to this size.
const PIECE_BYTES = 1024;
// A value of shorter items is stored whole: comparing them takes longer than writing them.
const MIN_ITEM_BYTES = 32;
// With more ranges the short ones are written again as one.
const MAX_RANGES = 48;
const MAX_DEPTH = 4;
// A run may read other checkpoints between its own.
const RECENT = 3;
const KNOWN_SERIES = 100_000;
// Two versions have much in common if most of these parts of one are in the other.
const SAMPLES = 5;
const SAMPLE_BYTES = 64;

type Row = Fields;

/** A stored piece: its number in its series, and the leaves that it was made from. */
class Piece {
  leaves: unknown[] = [];
  private marks: (Fields | null)[] = [];

  constructor(
    readonly series: number,
    readonly number: number,
    leaves: unknown[],
    readonly data: Buffer,
  ) {
    this.remember(leaves);
  }

  /** Remember the objects that the piece encodes. */
  remember(leaves: unknown[]): void {
    this.leaves = leaves;
    this.marks = leaves.map(getMark);
  }

  get isOpener(): boolean {
    return this.leaves[0] instanceof Opener;
  }

  /** Whether these leaves are unchanged; null if only their bytes can tell. */
  holds(leaves: unknown[], at: number): boolean | null {
    if (at + this.leaves.length > leaves.length) {
      return false;
    }

    let answer: boolean | null = true;
    for (let index = 0; index < this.leaves.length; index++) {
      const same = isUnchanged(this.leaves[index], this.marks[index] as Fields | null, leaves[at + index]);
      if (same === false) {
        return false;
      }

      answer = same === null ? null : answer;
    }

    return answer;
  }
}

/** A version of a channel that is stored in pieces. */
class CutValue {
  readonly opened: Set<string>;

  constructor(
    readonly isList: boolean,
    readonly count: number,
    readonly pieces: Piece[],
  ) {
    this.opened = new Set(pieces.filter((piece) => piece.isOpener).map((piece) => (piece.leaves[0] as Opener).path));
  }

  /** Whether another value may have most of the items of this one: not if it is a short list of new items. */
  mayShareWith(value: unknown): boolean {
    return isContainer(value) && 2 * getLeaves(value).length >= this.count;
  }
}

/** How a value is stored: whole, or as a header with ranges of pieces, of which some are new. */
export interface Stored {
  data: Buffer;
  /** An array of Postgres with three numbers for each range; null for a whole value. */
  ranges: string | null;
  /** The series, the number, the count of leaves and the bytes of each new piece. */
  pieces: [series: number, number: number, leaves: number, data: Buffer][];
}

/** What the next version of a value can share with: pieces, or the bytes of a whole one. */
type Known = CutValue | Buffer;

interface KnownValues {
  channels: Map<string, Known>;
  versions: Map<string, string>;
}

/** The checkpoints of a namespace that were read or put last, by their ids. */
class Namespace {
  readonly known = new Map<string, KnownValues>();
  /** What tasks that started from a checkpoint wrote: the next version is most likely one of these. */
  readonly written = new Map<string, Map<string, CutValue>>();
  lastPut: KnownValues | undefined;
}

/** The long values of the checkpoints that one run reads and writes. */
export class ValuePieces {
  private readonly namespaces = new Map<string, Namespace>();

  /** Encode the values of a checkpoint that are new in it, and remember all of them for the next one. */
  encode(
    name: { threadId: string; checkpointNs: string; parentId: string | null; id: string },
    values: Fields,
    versions: { all: Record<string, string | number>; new: Record<string, string | number> },
  ): Map<string, Stored> {
    const namespace = this.of(name.checkpointNs);
    const parent = namespace.known.get(name.parentId ?? "");

    const written = namespace.written.get(name.parentId ?? "");
    const stored = new Map<string, Stored>();
    const channels = new Map<string, Known>();
    for (const [channel, value] of Object.entries(values)) {
      const similar = parent?.channels.get(channel);
      if (!(channel in versions.new)) {
        if (similar !== undefined) {
          channels.set(channel, similar);
        }

        continue;
      }

      const [how, known] = store(name.threadId, value, written?.get(channel) ?? similar);
      stored.set(channel, how);

      if (known !== undefined) {
        channels.set(channel, known);
      }
    }

    if (channels.size > 0 || parent !== undefined) {
      namespace.lastPut = remember(namespace, name.id, channels, versions.all);
    }

    return stored;
  }

  /** Encode the write of a task. One that replaces a long value shares pieces with it. */
  encodeWrite(
    name: { threadId: string; checkpointNs: string; checkpointId: string | null },
    channel: string,
    value: unknown,
  ): Stored {
    const namespace = this.of(name.checkpointNs);
    const id = name.checkpointId ?? "";

    // A quick task ends before its checkpoint is put: the one before it, which this run put, has most of the value too.
    const before = (namespace.known.get(id) ?? namespace.lastPut)?.channels.get(channel);
    if (!(before instanceof CutValue && before.mayShareWith(value))) {
      return { data: encode(value), ranges: null, pieces: [] };
    }

    const [stored, known] = store(name.threadId, value, before);
    if (known instanceof CutValue) {
      putRecent(namespace.written, id, (namespace.written.get(id) ?? new Map()).set(channel, known));
    }

    return stored;
  }

  /** Remember the long values of a checkpoint that was read from a row. */
  read(row: Row, values: Fields, versions: Record<string, string | number>): void {
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
      remember(this.of(row.checkpoint_ns as string), row.checkpoint_id as string, channels, versions);
    }
  }

  /** Return the versions of those values that are lists in pieces of the last checkpoint, by their keys. */
  longLists(values: Fields): Record<string, string> {
    const last = [...this.of("").known.values()].at(-1);
    const versionsByKey: Record<string, string> = {};
    for (const [channel, known] of last?.channels ?? []) {
      const value = values[channel];
      if (known instanceof CutValue && known.isList && Array.isArray(value) && isSame(known, value)) {
        versionsByKey[channel] = last?.versions.get(channel) as string;
      }
    }

    return versionsByKey;
  }

  private of(checkpointNs: string): Namespace {
    const namespace = this.namespaces.get(checkpointNs) ?? new Namespace();
    this.namespaces.set(checkpointNs, namespace);
    return namespace;
  }
}

/** Remember the values of a checkpoint, with the versions of their channels. */
function remember(
  namespace: Namespace,
  id: string,
  channels: Map<string, Known>,
  all: Record<string, string | number>,
): KnownValues {
  const versions = new Map([...channels.keys()].map((channel) => [channel, String(all[channel])]));
  return putRecent(namespace.known, id, { channels, versions });
}

function putRecent<T>(recent: Map<string, T>, id: string, value: T): T {
  recent.delete(id);
  recent.set(id, value);
  if (recent.size > RECENT) {
    recent.delete(recent.keys().next().value as string);
  }

  return value;
}

// The number that each series of this process continues with, by threads and series.
const nextNumbers = new Map<string, number>();

/** Return the place of a new piece: after this one if its series ends there, else in a new series. */
function placeAfter(threadId: string, before: Piece | undefined): [series: number, number: number] {
  if (before !== undefined) {
    const key = `${threadId} ${before.series}`;
    if (nextNumbers.get(key) === before.number + 1) {
      continueWith(key, before.number + 2);
      return [before.series, before.number + 1];
    }
  }

  const series = randomBytes(6).readUIntBE(0, 6);
  continueWith(`${threadId} ${series}`, 1);
  return [series, 0];
}

function continueWith(key: string, number: number): void {
  nextNumbers.delete(key);
  nextNumbers.set(key, number);
  if (nextNumbers.size > KNOWN_SERIES) {
    nextNumbers.delete(nextNumbers.keys().next().value as string);
  }
}

/** Return how a value is stored, and what the next version can share with. */
function store(threadId: string, value: unknown, before: Known | undefined): [Stored, Known | undefined] {
  if (isContainer(value) && before instanceof CutValue) {
    const cut = new Cut(threadId, value, before).result();
    if (cut !== null) {
      return cut;
    }
  }

  const data = encode(value);
  const whole: Stored = { data, ranges: null, pieces: [] };
  if (!isWorthCutting(value, data)) {
    return [whole, undefined];
  }

  if (Buffer.isBuffer(before) && sharesMuch(before, data)) {
    const cut = new Cut(threadId, value, null).result();
    if (cut !== null) {
      return cut;
    }
  }

  return [whole, data];
}

/** Cuts one value, reusing pieces of the version before. */
class Cut {
  private readonly leaves: unknown[];
  private readonly encoded: Buffer[] = [];
  private pieces: Piece[] = [];
  private readonly fresh = new Set<Piece>();
  private waiting: number[] = [];
  private waitingBytes = 0;

  constructor(
    private readonly threadId: string,
    private readonly value: Container,
    private readonly before: CutValue | null,
  ) {
    this.leaves = [];
    this.open(value, "", 0);
  }

  /** Return the value in pieces; null where it should be stored whole. */
  result(): [Stored, CutValue] | null {
    this.match(this.before?.pieces ?? []);
    const size = countBytes(this.pieces);
    const addedBytes = countBytes(this.pieces.filter((piece) => this.fresh.has(piece)));

    if (size < MIN_BYTES || size < MIN_ITEM_BYTES * this.leaves.length) {
      return null;
    }
    if (this.before !== null && 2 * addedBytes > size) {
      return null;
    }

    this.joinShortRanges(size);
    const count = getLeaves(this.value).length;
    const isList = Array.isArray(this.value);

    const stored: Stored = {
      data: makeHeader(count, isList),
      ranges: `{${toRanges(this.pieces).join(",")}}`,
      pieces: this.pieces
        .filter((piece) => this.fresh.has(piece))
        .map((piece) => [piece.series, piece.number, piece.isOpener ? 0 : piece.leaves.length, piece.data]),
    };

    return [stored, new CutValue(isList, count, this.pieces)];
  }

  private open(value: Container, path: string, depth: number): void {
    for (const leaf of getLeaves(value)) {
      const inner = leaf instanceof Entry ? leaf.value : null;
      const inside = leaf instanceof Entry ? joinPath(path, leaf) : "";
      if (leaf instanceof Entry && isContainer(inner) && depth + 1 < MAX_DEPTH && this.isOpened(leaf, inner, inside)) {
        const name = encodeLeaf(new Entry(leaf.key, null)).subarray(0, -1);
        const header = makeHeader(getLeaves(inner).length, Array.isArray(inner));
        this.leaves.push(new Opener(inside, Buffer.concat([name, header])));
        this.open(inner, inside, depth + 1);
      } else {
        this.leaves.push(leaf);
      }
    }
  }

  private isOpened(leaf: Entry, inner: Container, path: string): boolean {
    const count = getLeaves(inner).length;
    if (count === 0 || this.before?.opened.has(path)) {
      return count > 0;
    }

    const size = encodeLeaf(leaf).length;
    return size >= PIECE_BYTES && size >= MIN_ITEM_BYTES * count;
  }

  /** Find the pieces of the leaves, and make those that there are not. */
  private match(before: Piece[]): void {
    const { leaves } = this;
    let byFirst: Map<unknown, number> | null = null;
    let expected = 0;
    for (let at = 0; at < leaves.length; ) {
      let index = this.matching(before, [expected, expected + 1], at);
      if (index === null && before.length > 0) {
        byFirst ??= new Map(before.map((piece, position) => [getName(piece.leaves[0]), position]));
        const other = byFirst.get(getName(leaves[at]));
        index = other === undefined ? null : this.matching(before, [other], at);
      }

      if (index === null) {
        this.wait(at++);
        continue;
      }

      this.flush();
      const piece = before[index] as Piece;
      this.pieces.push(piece);
      at += piece.leaves.length;
      expected = index + 1;
    }

    this.flush();
  }

  /** Return the first of these pieces that holds the leaves from a position on. */
  private matching(before: Piece[], candidates: number[], at: number): number | null {
    for (const index of candidates) {
      const piece = before[index];
      if (piece === undefined) {
        return null;
      }

      let holds = piece.holds(this.leaves, at);
      if (holds === null) {
        const leaves = this.leaves.slice(at, at + piece.leaves.length);
        holds = Buffer.concat(leaves.map((_, offset) => this.encode(at + offset))).equals(piece.data);
        if (holds) {
          piece.remember(leaves);
        }
      }

      if (holds) {
        return index;
      }
    }

    return null;
  }

  private encode(at: number): Buffer {
    this.encoded[at] ??= encodeLeaf(this.leaves[at]);
    return this.encoded[at] as Buffer;
  }

  /** Collect a leaf for a new piece. */
  private wait(at: number): void {
    const isOpener = this.leaves[at] instanceof Opener;
    if (isOpener) {
      this.flush();
    }

    this.waiting.push(at);
    this.waitingBytes += this.encode(at).length;

    if (isOpener || this.waitingBytes >= PIECE_BYTES) {
      this.flush();
    }
  }

  private flush(): void {
    if (this.waiting.length === 0) {
      return;
    }

    const leaves = this.waiting.map((at) => this.leaves[at]);
    const data = Buffer.concat(this.waiting.map((at) => this.encode(at)));

    // A header changes whenever its list grows: in a series of its own it leaves those of the items in one range.
    const last = leaves[0] instanceof Opener ? undefined : this.pieces.at(-1);
    this.add(new Piece(...placeAfter(this.threadId, last), leaves, data));
    this.waiting = [];
    this.waitingBytes = 0;
  }

  private add(piece: Piece): Piece {
    this.pieces.push(piece);
    this.fresh.add(piece);
    return piece;
  }

  /** Write neighbouring short ranges again as one, if there are too many ranges to read them quickly. */
  private joinShortRanges(size: number): void {
    const groups = groupRuns(this.pieces);
    const openers = this.pieces.filter((piece) => piece.isOpener).length;
    if (groups.length <= MAX_RANGES + 2 * openers) {
      return;
    }

    this.pieces = [];
    let last: Piece | undefined;
    for (const group of groups) {
      if (countBytes(group) * 16 >= size || group[0]?.isOpener) {
        this.pieces = this.pieces.concat(group);
        last = undefined;
        continue;
      }

      for (const piece of group) {
        last = this.add(new Piece(...placeAfter(this.threadId, last), piece.leaves, piece.data));
      }
    }
  }
}

function countBytes(pieces: Piece[]): number {
  return pieces.reduce((sum, piece) => sum + piece.data.length, 0);
}

/** Return runs of pieces whose numbers in one series follow each other. */
function groupRuns(pieces: Piece[]): Piece[][] {
  const groups: Piece[][] = [];
  for (const piece of pieces) {
    const last = groups.at(-1)?.at(-1);
    if (last !== undefined && last.series === piece.series && last.number + 1 === piece.number) {
      groups.at(-1)?.push(piece);
    } else {
      groups.push([piece]);
    }
  }

  return groups;
}

/** Return three numbers for each range of pieces: its series, its first number, and the number after its last. */
function toRanges(pieces: Piece[]): number[] {
  return groupRuns(pieces).flatMap((group) => {
    const first = group[0] as Piece;
    return [first.series, first.number, first.number + group.length];
  });
}

function isWorthCutting(value: unknown, data: Buffer): value is Container {
  const hasLongItems = !Array.isArray(value) || data.length >= MIN_ITEM_BYTES * value.length;
  return isContainer(value) && data.length >= MIN_BYTES && hasLongItems;
}

/** Whether most of a value is in another: half of it at the beginning or at the end, or most samples of it anywhere. */
function sharesMuch(before: Buffer, data: Buffer): boolean {
  const half = Math.min(before.length, data.length) >> 1;
  if (before.subarray(5, half).equals(data.subarray(5, half)) || before.subarray(-half).equals(data.subarray(-half))) {
    return true;
  }

  const step = Math.floor(before.length / SAMPLES);
  const starts = Array.from({ length: SAMPLES }, (_, index) => index * step + (step >> 1));
  const matches = starts.filter((start) => data.includes(before.subarray(start, start + SAMPLE_BYTES)));

  return 2 * matches.length > SAMPLES;
}

/** Return what the next version of a value that was read can share with; null for nothing. */
function readKnown(value: unknown, data: Buffer, ranges: string | null, sizes: Buffer | null): Known | null {
  if (!isWorthCutting(value, data)) {
    return null;
  }

  return ranges === null || sizes === null ? data : readPieces(value, data, ranges, sizes);
}

/** Return the pieces of a value that was read; null if they do not fit it, and it will be stored whole. */
function readPieces(value: Container, data: Buffer, ranges: string, sizes: Buffer): CutValue | null {
  const numbers = ranges.replace(/[{}]/g, "").split(",").map(Number);
  const [count, isList] = [getLeaves(value).length, Array.isArray(value)];

  const walk = new Walk(value);
  const pieces: Piece[] = [];
  let [at, index] = [makeHeader(count, isList).length, 0];
  for (let range = 0; range + 2 < numbers.length; range += 3) {
    for (let number = numbers[range + 1] as number; number < (numbers[range + 2] as number); number++, index++) {
      const [size, leaves] = [sizes.readInt32BE(8 * index), sizes.readInt32BE(8 * index + 4)];
      const part = data.subarray(at, at + size);

      const pieceLeaves = leaves === 0 ? walk.open(part) : walk.take(leaves);
      if (pieceLeaves.length === 0) {
        return null;
      }

      pieces.push(new Piece(numbers[range] as number, number, pieceLeaves, part));
      at += size;
    }
  }

  return at === data.length && walk.isOver() ? new CutValue(isList, count, pieces) : null;
}

/** The leaves of a value in order, opening the lists and dicts inside as its pieces say. */
class Walk {
  private readonly stack: { leaves: unknown[]; at: number; path: string }[];

  constructor(value: Container) {
    this.stack = [{ leaves: getLeaves(value), at: 0, path: "" }];
  }

  /** Return the next leaves; none if there are fewer. */
  take(count: number): unknown[] {
    const leaves: unknown[] = [];
    for (let top = this.top(); top !== undefined && leaves.length < count; top = this.top()) {
      const part = top.leaves.slice(top.at, top.at + count - leaves.length);
      leaves.push(...part);
      top.at += part.length;
    }

    return leaves.length === count ? leaves : [];
  }

  /** Return the opener of the next entry, whose items come next; none if it has no items. */
  open(data: Buffer): unknown[] {
    const top = this.top();
    const [entry] = this.take(1);
    if (top === undefined || !(entry instanceof Entry) || !isContainer(entry.value)) {
      return [];
    }

    const path = joinPath(top.path, entry);
    this.stack.push({ leaves: getLeaves(entry.value), at: 0, path });
    return [new Opener(path, data)];
  }

  /** Whether no leaf is left. */
  isOver(): boolean {
    return this.top() === undefined;
  }

  private top(): { leaves: unknown[]; at: number; path: string } | undefined {
    let top = this.stack.at(-1);
    while (top !== undefined && top.at >= top.leaves.length) {
      this.stack.pop();
      top = this.stack.at(-1);
    }

    return top;
  }
}

/** Whether a list has the same items, and all are messages or plain data, which are read again with the same JSON. */
function isSame(known: CutValue, value: unknown[]): boolean {
  const leaves = known.pieces.flatMap((piece) => piece.leaves);

  return (
    leaves.length === value.length &&
    leaves.every((item, index) => {
      const isObject = typeof item === "object" && item !== null;
      return item === value[index] && (!isObject || isMessage(item) || plain(item) === item);
    })
  );
}
