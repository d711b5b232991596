/** The structs of messages.capnp, and where Cap'n Proto puts their fields. */

import { readFileSync } from "node:fs";

const BITS: Record<string, number> = {
  bool: 1,
  uint8: 8,
  uint16: 16,
  int32: 32,
  uint32: 32,
  int64: 64,
  uint64: 64,
  float64: 64,
};
const WORD_BITS = 64;
const PAYLOADS = "Lengths";

export interface Field {
  /** As in the schema; a column of lengths, `callsLengths`, is the field `calls`. */
  readonly name: string;
  /** `uint8` to `float64`, `bool`, `text` or `data`, also of the entries of a list. */
  readonly kind: string;
  readonly isList: boolean;
  /** Whether these are the lengths of parts of the payload. */
  readonly isPayload: boolean;
  /** Whether `place` is the index of a pointer. */
  readonly isPointer: boolean;
  /** The offset in bits in the data section, or the index of the pointer. */
  readonly place: number;
}

export interface Struct {
  readonly name: string;
  readonly fields: readonly Field[];
  /** Words of 8 bytes in the data section. */
  readonly words: number;
  readonly pointers: number;
}

/** Offsets of numbers: each goes into the smallest gap that earlier ones have left, or else into a new word. */
class DataSection {
  words = 0;
  private readonly gaps = new Map<number, number>();

  allocate(bits: number): number {
    const fitting = [...this.gaps.keys()].filter((size) => size >= bits);
    let size = fitting.length > 0 ? Math.min(...fitting) : WORD_BITS;
    const at = this.gaps.get(size) ?? this.words++ * WORD_BITS;
    this.gaps.delete(size);
    while (size > bits) {
      size /= 2;
      this.gaps.set(size, at + size);
    }
    return at;
  }
}

type Declared = { name: string; number: number; isList: boolean; kind: string };

function fieldsOf(body: string): Declared[] {
  const found = [...body.matchAll(/(\w+) @(\d+) :(List\()?(\w+)\)?;/g)];
  return found
    .map(([, name, number, list, kind]) => ({ name: name!, number: Number(number), isList: !!list, kind: kind! }))
    .sort((one, other) => one.number - other.number);
}

function structOf(name: string, body: string): Struct {
  const data = new DataSection();
  let pointers = 0;
  const fields = fieldsOf(body).map((declared): Field => {
    const kind = declared.kind.toLowerCase();
    const isPayload = declared.name.endsWith(PAYLOADS);
    const isPointer = declared.isList || !(kind in BITS);
    return {
      name: isPayload ? declared.name.slice(0, -PAYLOADS.length) : declared.name,
      kind,
      isList: declared.isList,
      isPayload,
      isPointer,
      place: isPointer ? pointers++ : data.allocate(BITS[kind]!),
    };
  });
  return { name, fields, words: data.words, pointers };
}

function read(text: string): { structs: Map<string, Struct>; union: string[] } {
  const plain = text.replace(/#.*/g, "");
  const structs = new Map<string, Struct>();
  let union: string[] = [];
  for (const [, name, body] of plain.matchAll(/^struct (\w+) \{((?:[^{}]|\{[^{}]*\})*)\}/gm)) {
    if (name === "Message") union = fieldsOf(body!).map((member) => member.kind);
    else structs.set(name!, structOf(name!, body!));
  }
  return { structs, union };
}

const { structs, union } = read(readFileSync(new URL("./messages.capnp", import.meta.url), "utf-8"));

/** The struct of a type of messages, such as `Submit`, or `Group`. */
export function struct(name: string): Struct {
  const found = structs.get(name);
  if (!found) throw new Error(`the schema has no struct ${name}`);
  return found;
}

/** The types of messages in the order of their numbers in the union `Message`. */
export const TYPES: readonly string[] = union;
