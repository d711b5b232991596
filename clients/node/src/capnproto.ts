/**
 * Cap'n Proto's encoding: structs of numbers, booleans, texts, bytes and lists of these.
 *
 * A struct is written into one segment. What is read may have several segments and far pointers; every pointer is
 * checked. Source: the Cap'n Proto encoding specification, version 1.0.
 */

import { struct, TYPES, type Field, type Struct } from "./schema.js";

/** Values by the names of fields. 64-bit whole numbers are bigint; fields that are left out have their default. */
export type Fields = Record<string, unknown>;

/** A message that breaks the specification. */
export class MalformedMessageError extends Error {}

/** Bytes that may be read of a message, as pointers may alias each other: so many times its size, and some more. */
const AMPLIFICATION = 8;
const EXTRA_BYTES = 32 * 1024;
const [LIST, FAR] = [1, 2];
const [BITS_LIST, BYTES_LIST, POINTERS_LIST] = [1, 2, 6];

interface Numbers {
  readonly size: number;
  readonly listSize: number;
  readonly get: (view: DataView, at: number) => number | bigint;
  readonly set: (view: DataView, at: number, value: never) => void;
}

const NUMBERS: Record<string, Numbers> = {
  uint8: { size: 1, listSize: 2, get: (v, at) => v.getUint8(at), set: (v, at, x: number) => v.setUint8(at, x) },
  uint16: { size: 2, listSize: 3, get: (v, at) => v.getUint16(at, true), set: (v, at, x: number) => v.setUint16(at, x, true) },
  int32: { size: 4, listSize: 4, get: (v, at) => v.getInt32(at, true), set: (v, at, x: number) => v.setInt32(at, x, true) },
  uint32: { size: 4, listSize: 4, get: (v, at) => v.getUint32(at, true), set: (v, at, x: number) => v.setUint32(at, x, true) },
  int64: { size: 8, listSize: 5, get: (v, at) => v.getBigInt64(at, true), set: (v, at, x: bigint) => v.setBigInt64(at, x, true) },
  uint64: { size: 8, listSize: 5, get: (v, at) => v.getBigUint64(at, true), set: (v, at, x: bigint) => v.setBigUint64(at, x, true) },
  float64: { size: 8, listSize: 5, get: (v, at) => v.getFloat64(at, true), set: (v, at, x: number) => v.setFloat64(at, x, true) },
};

/** What a number is that was not written; 0 of the other kinds. */
const ABSENT: Record<string, unknown> = { bool: false, int64: 0n, uint64: 0n };

// --- writing --------------------------------------------------------------------------------------------------------

/** Collects the words of a segment. */
class Writer {
  private buffer = Buffer.alloc(1024);
  private view = new DataView(this.buffer.buffer, this.buffer.byteOffset, this.buffer.length);
  private used = 0;

  /** Reserve whole words of zeros; returns where they begin. */
  reserve(bytes: number): number {
    const at = this.used;
    this.used += (bytes + 7) & ~7;
    if (this.used > this.buffer.length) {
      const longer = Buffer.alloc(Math.max(this.used, 2 * this.buffer.length));
      this.buffer.copy(longer, 0, 0, at);
      this.buffer = longer;
      this.view = new DataView(longer.buffer, longer.byteOffset, longer.length);
    }
    return at;
  }

  word(at: number, value: bigint): void {
    this.view.setBigUint64(at, value, true);
  }

  structPointer(at: number, to: number, words: number, pointers: number): void {
    const offset = BigInt((to - at - 8) / 8) << 2n;
    const empty = words === 0 && pointers === 0;
    this.word(at, empty ? 0xffff_fffcn : offset | (BigInt(words) << 32n) | (BigInt(pointers) << 48n));
  }

  private listPointer(at: number, to: number, listSize: number, count: number): void {
    this.word(at, (BigInt((to - at - 8) / 8) << 2n) | BigInt(LIST) | (BigInt(listSize) << 32n) | (BigInt(count) << 35n));
  }

  /** Write a struct into the words at `at`, and what it points to behind everything else. */
  struct(at: number, layout: Struct, fields: Fields): void {
    for (const field of layout.fields) {
      const value = fields[field.name];
      if (value === undefined) continue;
      if (field.isPointer) this.pointer(at + 8 * (layout.words + field.place), field, value);
      else if (field.kind === "bool") this.flag(at, field.place, value as boolean);
      else NUMBERS[field.kind]!.set(this.view, at + field.place / 8, value as never);
    }
  }

  private flag(at: number, bit: number, value: boolean): void {
    const byte = at + (bit >> 3);
    if (value) this.buffer[byte] = this.buffer[byte]! | (1 << (bit & 7));
  }

  private pointer(at: number, field: Field, value: unknown): void {
    if (field.isPayload) this.numbers(at, NUMBERS.uint32!, (value as Uint8Array[]).map((part) => part.length));
    else if (!field.isList) this.blob(at, field.kind, value as string | Uint8Array);
    else if (field.kind in NUMBERS) this.numbers(at, NUMBERS[field.kind]!, value as ArrayLike<number>);
    else if (field.kind === "bool") this.flags(at, value as boolean[]);
    else this.blobs(at, field.kind, value as (string | Uint8Array)[]);
  }

  private blob(at: number, kind: string, value: string | Uint8Array): void {
    const bytes = kind === "text" ? Buffer.from(`${value as string}\0`) : (value as Uint8Array);
    if (bytes.length === 0 || (kind === "text" && bytes.length === 1)) return;
    const to = this.reserve(bytes.length);
    this.buffer.set(bytes, to);
    this.listPointer(at, to, BYTES_LIST!, bytes.length);
  }

  private blobs(at: number, kind: string, values: (string | Uint8Array)[]): void {
    if (values.length === 0) return;
    const to = this.reserve(8 * values.length);
    this.listPointer(at, to, POINTERS_LIST!, values.length);
    values.forEach((value, index) => this.blob(to + 8 * index, kind, value));
  }

  private flags(at: number, values: boolean[]): void {
    if (values.length === 0) return;
    const to = this.reserve((values.length + 7) / 8);
    this.listPointer(at, to, BITS_LIST!, values.length);
    values.forEach((value, index) => this.flag(to, index, value));
  }

  private numbers(at: number, kind: Numbers, values: ArrayLike<number | bigint>): void {
    if (values.length === 0) return;
    const to = this.reserve(kind.size * values.length);
    this.listPointer(at, to, kind.listSize, values.length);
    for (let index = 0; index < values.length; index++) kind.set(this.view, to + kind.size * index, values[index] as never);
  }

  /** The segment in stream framing. */
  finish(): Buffer {
    const framed = Buffer.alloc(8 + this.used);
    framed.writeUInt32LE(this.used / 8, 4);
    this.buffer.copy(framed, 8, 0, this.used);
    return framed;
  }
}

/** A struct as a message of its own, in stream framing. */
export function encodeStruct(name: string, fields: Fields): Buffer {
  const layout = struct(name);
  const writer = new Writer();
  const root = writer.reserve(8);
  const at = writer.reserve(8 * (layout.words + layout.pointers));
  writer.structPointer(root, at, layout.words, layout.pointers);
  writer.struct(at, layout, fields);
  return writer.finish();
}

/** The columns of a message: a member of the union `Message`, in stream framing. */
export function encodeMessage(type: string, fields: Fields): Buffer {
  const layout = struct(type);
  const writer = new Writer();
  const root = writer.reserve(8);
  const union = writer.reserve(16);
  writer.structPointer(root, union, 1, 1);
  writer.word(union, BigInt(TYPES.indexOf(type)));
  const at = writer.reserve(8 * (layout.words + layout.pointers));
  writer.structPointer(union + 8, at, layout.words, layout.pointers);
  writer.struct(at, layout, fields);
  return writer.finish();
}

// --- reading --------------------------------------------------------------------------------------------------------

/** A place in the frame, and the segment that it is in. */
interface Place {
  readonly at: number;
  readonly segment: number;
}

class Reader {
  private readonly view: DataView;
  private readonly segments: [start: number, end: number][] = [];
  private allowance: number;

  constructor(private readonly frame: Buffer) {
    this.view = new DataView(frame.buffer, frame.byteOffset, frame.length);
    this.allowance = AMPLIFICATION * frame.length + EXTRA_BYTES;
    const count = frame.length >= 8 ? frame.readUInt32LE(0) + 1 : 0;
    let at = 8 * (Math.floor(count / 2) + 1);
    if (count === 0 || count > 512 || frame.length < at) throw new MalformedMessageError("no segments");
    for (let segment = 0; segment < count; segment++) {
      const end = at + 8 * frame.readUInt32LE(4 + 4 * segment);
      this.segments.push([at, end]);
      at = end;
    }
    if (at !== frame.length) throw new MalformedMessageError(`segments of ${at} bytes in ${frame.length}`);
  }

  private get root(): Place {
    return { at: this.segments[0]![0], segment: 0 };
  }

  rootStruct(name: string): Fields {
    const [place, words, pointers] = this.follow(this.root);
    return this.struct(place, words, pointers, struct(name));
  }

  message(): [type: string, fields: Fields] {
    const [union, words, pointers] = this.follow(this.root);
    const number = words > 0 ? this.view.getUint16(union.at, true) : 0;
    const type = TYPES[number];
    if (type === undefined) throw new MalformedMessageError(`message type ${number} is unknown`);
    const layout = struct(type);
    if (pointers === 0) return [type, this.struct({ at: 0, segment: 0 }, 0, 0, layout)];
    const [place, inner, innerPointers] = this.follow({ at: union.at + 8 * words, segment: union.segment });
    return [type, this.struct(place, inner, innerPointers, layout)];
  }

  private struct(place: Place, words: number, pointers: number, layout: Struct): Fields {
    const fields: Fields = {};
    for (const field of layout.fields) {
      const pointer = { at: place.at + 8 * (words + field.place), segment: place.segment };
      if (field.isPointer) fields[field.name] = this.value(field.place < pointers ? pointer : null, field);
      else if (field.place >= 64 * words) fields[field.name] = ABSENT[field.kind] ?? 0; // of an earlier version
      else if (field.kind === "bool") fields[field.name] = this.flag(place.at, field.place);
      else fields[field.name] = NUMBERS[field.kind]!.get(this.view, place.at + field.place / 8);
    }
    return fields;
  }

  private flag(at: number, bit: number): boolean {
    return ((this.frame[at + (bit >> 3)]! >> (bit & 7)) & 1) === 1;
  }

  private value(pointer: Place | null, field: Field): unknown {
    const isNull = pointer === null || this.view.getBigUint64(pointer.at, true) === 0n;
    if (!field.isList) return isNull ? (field.kind === "text" ? "" : Buffer.alloc(0)) : this.blob(pointer, field.kind);
    if (isNull) return [];
    if (field.kind === "bool") {
      const [start, count] = this.list(pointer, BITS_LIST!, 0);
      return Array.from({ length: count }, (_, index) => this.flag(start.at, index));
    }
    const kind = NUMBERS[field.kind];
    if (kind) {
      const [start, count] = this.list(pointer, kind.listSize, kind.size);
      return Array.from({ length: count }, (_, index) => kind.get(this.view, start.at + kind.size * index));
    }
    const [start, count] = this.list(pointer, POINTERS_LIST!, 8);
    return Array.from({ length: count }, (_, index) => {
      const entry = { at: start.at + 8 * index, segment: start.segment };
      const missing = this.view.getBigUint64(entry.at, true) === 0n;
      return missing ? (field.kind === "text" ? "" : Buffer.alloc(0)) : this.blob(entry, field.kind);
    });
  }

  private blob(pointer: Place, kind: string): string | Buffer {
    const [start, count] = this.list(pointer, BYTES_LIST!, 1);
    const bytes = this.frame.subarray(start.at, start.at + count);
    if (kind !== "text") return bytes;
    if (bytes[count - 1] !== 0) throw new MalformedMessageError("a text does not end with a zero byte");
    return bytes.toString("utf-8", 0, count - 1);
  }

  /** Follow the pointer to a struct: where it is, and the sizes of its sections. */
  private follow(pointer: Place): [Place, words: number, pointers: number] {
    const [target, place] = this.resolve(pointer);
    if (target === 0n) return [place, 0, 0];
    if (Number(target & 3n) !== 0) throw new MalformedMessageError("no struct where one is expected");
    const words = Number((target >> 32n) & 0xffffn);
    const pointers = Number(target >> 48n);
    this.claim(place, 8 * (words + pointers));
    return [place, words, pointers];
  }

  private list(pointer: Place, listSize: number, size: number): [Place, count: number] {
    const [target, place] = this.resolve(pointer);
    if (Number(target & 3n) !== LIST || Number((target >> 32n) & 7n) !== listSize) {
      throw new MalformedMessageError("no list of the expected type");
    }
    const count = Number(target >> 35n);
    this.claim(place, size > 0 ? count * size : Math.ceil(count / 8));
    return [place, count];
  }

  /** Resolve far pointers: the pointer with type and sizes, and the place of the content. */
  private resolve({ at, segment }: Place): [target: bigint, place: Place] {
    this.inside({ at, segment }, 8);
    let pointer = this.view.getBigUint64(at, true);
    if (Number(pointer & 3n) === FAR) {
      const pad = this.farPlace(pointer);
      const isDouble = (pointer & 4n) !== 0n;
      this.inside(pad, isDouble ? 16 : 8);
      pointer = this.view.getBigUint64(pad.at, true);
      if (isDouble) {
        if (Number(pointer & 7n) !== FAR) throw new MalformedMessageError("a far pointer leads to no pointer");
        return [this.view.getBigUint64(pad.at + 8, true), this.farPlace(pointer)];
      }
      if (Number(pointer & 3n) === FAR) throw new MalformedMessageError("a far pointer leads to another one");
      ({ at, segment } = pad);
    }
    const offset = Number(BigInt.asIntN(30, (pointer & 0xffff_ffffn) >> 2n));
    return [pointer, { at: at + 8 + 8 * offset, segment }];
  }

  private farPlace(pointer: bigint): Place {
    const segment = Number(pointer >> 32n);
    const found = this.segments[segment];
    if (found === undefined) throw new MalformedMessageError(`no segment ${segment}`);
    return { at: found[0] + Number(pointer & 0xffff_fff8n), segment };
  }

  private claim(place: Place, bytes: number): void {
    this.inside(place, bytes);
    this.allowance -= bytes || 8;
    if (this.allowance < 0) throw new MalformedMessageError("it exceeds the traversal limit");
  }

  private inside({ at, segment }: Place, bytes: number): void {
    const [start, end] = this.segments[segment]!;
    if (at < start || at + bytes > end) throw new MalformedMessageError("a pointer leads out of its segment");
  }
}

/** The type and the fields of a message's columns; payload fields are lists of lengths. */
export function decodeMessage(columns: Buffer): [type: string, fields: Fields] {
  return new Reader(columns).message();
}

/** The fields of a struct that is a message of its own, such as a group. */
export function decodeStruct(name: string, written: Buffer): Fields {
  return new Reader(written).rootStruct(name);
}
