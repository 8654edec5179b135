// MessagePack as `ormsgpack` writes it: the shortest form of each value. Strings are UTF-8, undefined is nil, and
// properties that are undefined, functions or symbols are left out, as JSON does.

/** What a value is as an extension; null for one that is encoded as it is. */
export type ToExtension = (value: object) => Extension | null;
/** The value of an extension, whose payload is decoded if it was encoded as `Extension` does. */
export type FromExtension = (code: number, payload: Uint8Array, decode: (data: Uint8Array) => unknown) => unknown;

/** An extension: a code, and a payload that is encoded in its place. */
export class Extension {
  constructor(
    readonly code: number,
    readonly payload: unknown,
  ) {}
}

const BIG_INTEGER = 1;
// Of values of handlers.
const [TUPLE, UUID] = [2, 3];
const MAX_DEPTH = 1000;

/** Encodes values one after the other, into a buffer that it keeps. */
export class Packer {
  private buffer = Buffer.allocUnsafeSlow(16_384);
  private at = 0;

  constructor(private readonly toExtension: ToExtension = () => null) {}

  /** Return the bytes of a value, with some bytes before it that the caller fills. Throws TypeError. */
  pack(value: unknown, before = 0): Buffer {
    this.at = before;
    this.reserve(0);
    this.put(value, 0);
    const bytes = Buffer.allocUnsafe(this.at);

    this.buffer.copy(bytes, 0, 0, this.at);
    if (this.buffer.length > 4_000_000) {
      this.buffer = Buffer.allocUnsafeSlow(16_384);
    }

    return bytes;
  }

  private reserve(size: number): void {
    const end = this.at + size;
    if (end > this.buffer.length) {
      const larger = Buffer.allocUnsafeSlow(Math.max(end, 2 * this.buffer.length));
      this.buffer.copy(larger, 0, 0, this.at);
      this.buffer = larger;
    }
  }

  private byte(code: number): void {
    this.reserve(1);
    this.buffer[this.at++] = code;
  }

  private put(value: unknown, depth: number): void {
    switch (typeof value) {
      case "string":
        return this.text(value);
      case "number":
        return this.number(value);
      case "boolean":
        return this.byte(value ? 0xc3 : 0xc2);
      case "bigint":
        return this.bigint(value);
      case "object":
        return value === null ? this.byte(0xc0) : this.object(value, depth);
      default:
        return this.byte(0xc0);
    }
  }

  private text(value: string): void {
    const bound = value.length * 3;
    if (bound < 32) {
      // Short: written first, and moved nowhere, because its header has one byte whatever it holds.
      this.reserve(1 + bound);
      const size = this.buffer.write(value, this.at + 1, "utf8");
      this.buffer[this.at] = 0xa0 | size;
      this.at += 1 + size;
      return;
    }

    const size = Buffer.byteLength(value, "utf8");
    if (size < 32) {
      this.byte(0xa0 | size);
    } else if (size < 0x100) {
      this.reserve(2);
      this.buffer[this.at++] = 0xd9;
      this.buffer[this.at++] = size;
    } else {
      this.sized(0xda, 0xdb, size);
    }

    this.reserve(size);
    this.buffer.write(value, this.at, "utf8");
    this.at += size;
  }

  /** Write a size of two bytes, or of four. */
  private sized(short: number, long: number, size: number): void {
    this.reserve(5);

    if (size < 0x10000) {
      this.buffer[this.at] = short;
      this.buffer.writeUInt16BE(size, this.at + 1);
      this.at += 3;
    } else {
      this.buffer[this.at] = long;
      this.buffer.writeUInt32BE(size, this.at + 1);
      this.at += 5;
    }
  }

  private number(value: number): void {
    this.reserve(9);
    const { buffer } = this;
    if (!Number.isSafeInteger(value) || Object.is(value, -0)) {
      buffer[this.at] = 0xcb;
      buffer.writeDoubleBE(value, this.at + 1);
      this.at += 9;
    } else if (value >= 0) {
      this.natural(value);
    } else if (value >= -32) {
      buffer[this.at++] = value & 0xff;
    } else if (value >= -0x80) {
      buffer[this.at] = 0xd0;
      buffer.writeInt8(value, this.at + 1);
      this.at += 2;
    } else if (value >= -0x8000) {
      buffer[this.at] = 0xd1;
      buffer.writeInt16BE(value, this.at + 1);
      this.at += 3;
    } else if (value >= -0x80000000) {
      buffer[this.at] = 0xd2;
      buffer.writeInt32BE(value, this.at + 1);
      this.at += 5;
    } else {
      buffer[this.at] = 0xd3;
      buffer.writeBigInt64BE(BigInt(value), this.at + 1);
      this.at += 9;
    }
  }

  private natural(value: number): void {
    const { buffer } = this;
    if (value < 0x80) {
      buffer[this.at++] = value;
    } else if (value < 0x100) {
      buffer[this.at] = 0xcc;
      buffer[this.at + 1] = value;
      this.at += 2;
    } else if (value < 0x10000) {
      buffer[this.at] = 0xcd;
      buffer.writeUInt16BE(value, this.at + 1);
      this.at += 3;
    } else if (value < 0x100000000) {
      buffer[this.at] = 0xce;
      buffer.writeUInt32BE(value, this.at + 1);
      this.at += 5;
    } else {
      buffer[this.at] = 0xcf;
      buffer.writeBigUInt64BE(BigInt(value), this.at + 1);
      this.at += 9;
    }
  }

  private bigint(value: bigint): void {
    if (value >= -(2n ** 63n) && value < 2n ** 63n) {
      this.reserve(9);
      this.buffer[this.at] = 0xd3;
      this.buffer.writeBigInt64BE(value, this.at + 1);
      this.at += 9;
    } else {
      this.raw(BIG_INTEGER, Buffer.from(value.toString()));
    }
  }

  private object(value: object, depth: number): void {
    if (depth > MAX_DEPTH) {
      throw new TypeError("a value is nested too deeply, or contains itself");
    }

    if (Array.isArray(value)) {
      if (value.length < 16) {
        this.byte(0x90 | value.length);
      } else {
        this.sized(0xdc, 0xdd, value.length);
      }

      for (const item of value) {
        this.put(item, depth + 1);
      }

      return;
    }

    const extension = value instanceof Extension ? value : this.toExtension(value);
    if (extension !== null) {
      return this.extension(extension, depth);
    }
    if (value instanceof Uint8Array) {
      return this.binary(value);
    }

    const record = value as Record<string, unknown>;
    const keys = Object.keys(record).filter((key) => isKept(record[key]));
    if (keys.length < 16) {
      this.byte(0x80 | keys.length);
    } else {
      this.sized(0xde, 0xdf, keys.length);
    }

    for (const key of keys) {
      this.text(key);
      this.put(record[key], depth + 1);
    }
  }

  private binary(value: Uint8Array): void {
    if (value.length < 0x100) {
      this.reserve(2);
      this.buffer[this.at++] = 0xc4;
      this.buffer[this.at++] = value.length;
    } else {
      this.sized(0xc5, 0xc6, value.length);
    }

    this.reserve(value.length);
    this.buffer.set(value, this.at);
    this.at += value.length;
  }

  private extension(extension: Extension, depth: number): void {
    this.reserve(6);
    const start = this.at;
    this.at += 6;
    this.put(extension.payload, depth + 1);
    this.buffer[start] = 0xc9;
    this.buffer.writeUInt32BE(this.at - start - 6, start + 1);
    this.buffer[start + 5] = extension.code;
  }

  private raw(code: number, payload: Uint8Array): void {
    this.reserve(6 + payload.length);
    this.buffer[this.at] = 0xc9;
    this.buffer.writeUInt32BE(payload.length, this.at + 1);
    this.buffer[this.at + 5] = code;
    this.buffer.set(payload, this.at + 6);
    this.at += 6 + payload.length;
  }
}

/** Whether a property with this value is encoded. */
export function isKept(value: unknown): boolean {
  return value !== undefined && typeof value !== "function" && typeof value !== "symbol";
}

function bigInteger(code: number, payload: Uint8Array): unknown {
  if (code !== BIG_INTEGER || payload.length > 4000) {
    throw new RangeError(`an extension of the unknown type ${code}`);
  }

  return Number(BigInt(Buffer.from(payload).toString("latin1")));
}

/** Decode a value. Throws RangeError for data that is not MessagePack. */
export function unpack(data: Uint8Array, fromExtension: FromExtension = bigInteger): unknown {
  const reader = new Reader(data, fromExtension);
  const value = reader.next(0);
  reader.end();
  return value;
}

class Reader {
  private readonly buffer: Buffer;
  private at = 0;

  constructor(
    data: Uint8Array,
    private readonly fromExtension: FromExtension,
  ) {
    this.buffer = Buffer.isBuffer(data) ? data : Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  }

  end(): void {
    if (this.at !== this.buffer.length) {
      throw new RangeError("data after the end of a value");
    }
  }

  next(depth: number): unknown {
    if (depth > MAX_DEPTH) {
      throw new RangeError("a value is nested too deeply");
    }

    const code = this.uint(1);
    if (code < 0x80) {
      return code;
    }
    if (code < 0x90) {
      return this.map(code & 0x0f, depth);
    }

    if (code < 0xa0) {
      return this.array(code & 0x0f, depth);
    }
    if (code < 0xc0) {
      return this.text(code & 0x1f);
    }

    return code >= 0xe0 ? code - 0x100 : this.long(code, depth);
  }

  private long(code: number, depth: number): unknown {
    switch (code) {
      case 0xc0:
        return null;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return this.take(this.uint(1 << (code - 0xc4)));
      case 0xc7:
      case 0xc8:
      case 0xc9:
        return this.extension(this.uint(1 << (code - 0xc7)));
      case 0xca:
        return this.take(4).readFloatBE(0);
      case 0xcb:
        return this.take(8).readDoubleBE(0);
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this.uint(1 << (code - 0xcc));
      case 0xcf:
        return Number(this.take(8).readBigUInt64BE(0));
      case 0xd0:
      case 0xd1:
      case 0xd2: {
        const size = 1 << (code - 0xd0);
        return this.take(size).readIntBE(0, size);
      }
      case 0xd3:
        return Number(this.take(8).readBigInt64BE(0));
      case 0xd4:
      case 0xd5:
      case 0xd6:
      case 0xd7:
      case 0xd8:
        return this.extension(1 << (code - 0xd4));
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.text(this.uint(1 << (code - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this.array(this.uint(2 << (code - 0xdc)), depth);
      case 0xde:
      case 0xdf:
        return this.map(this.uint(2 << (code - 0xde)), depth);
      default:
        throw new RangeError(`the unknown code ${code}`);
    }
  }

  private uint(size: number): number {
    const at = this.advance(size);
    return size === 1 ? (this.buffer[at] as number) : this.buffer.readUIntBE(at, size);
  }

  private advance(size: number): number {
    const at = this.at;
    if (at + size > this.buffer.length) {
      throw new RangeError("a value is cut off");
    }

    this.at = at + size;
    return at;
  }

  private take(size: number): Buffer {
    const at = this.advance(size);
    return this.buffer.subarray(at, at + size);
  }

  private text(size: number): string {
    const at = this.advance(size);
    return this.buffer.toString("utf8", at, at + size);
  }

  private array(size: number, depth: number): unknown[] {
    const items: unknown[] = [];
    for (let index = 0; index < size; index++) {
      items.push(this.next(depth + 1));
    }

    return items;
  }

  private map(size: number, depth: number): Record<string, unknown> {
    const record: Record<string, unknown> = {};
    for (let index = 0; index < size; index++) {
      const key = this.next(depth + 1);
      const name = typeof key === "string" ? key : String(key);
      const value = this.next(depth + 1);
      if (name === "__proto__") {
        Object.defineProperty(record, name, { value, enumerable: true, configurable: true, writable: true });
      } else {
        record[name] = value;
      }
    }

    return record;
  }

  private extension(size: number): unknown {
    const code = this.uint(1);
    return this.fromExtension(code, this.take(size), (data) => unpack(data, this.fromExtension));
  }
}

/** Encode a value of handlers as `portside/executor/values.py` reads it. */
export function packValue(value: unknown): Buffer {
  return new Packer().pack(value);
}

/** Decode a value that `portside/executor/values.py` wrote: ids and times are strings, tuples are arrays. */
export function unpackValue(data: Uint8Array): unknown {
  return unpack(data, (code, payload, decode) => {
    const bytes = Buffer.from(payload);
    switch (code) {
      case BIG_INTEGER:
        return bigInteger(code, payload);
      case TUPLE:
        return decode(payload);
      case UUID:
        return bytes.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
      default:
        return bytes.toString("utf8");
    }
  });
}
