/** Messages as ZeroMQ carries them: the size of the columns, a header, columns and a payload in one frame. */

import { decodeMessage, encodeMessage, MalformedMessageError, type Fields } from "./capnproto.js";
import { struct } from "./schema.js";

const HEAD_BYTES = 24;
const UNNUMBERED = new Set(["Hello", "Welcome", "Refused", "NeedHello", "Heartbeat", "Acknowledge"]);

export interface Message {
  readonly type: string;
  readonly fields: Fields;
}

export interface Received extends Message {
  /** 0 of a message that is not numbered. */
  readonly sequence: bigint;
  readonly acknowledged: bigint;
}

export function isNumbered(type: string): boolean {
  return !UNNUMBERED.has(type);
}

/** One frame. Payload columns, lists of bytes, follow the columns in the order of the schema. */
export function encode(type: string, fields: Fields, sequence: bigint, acknowledged: bigint): Buffer {
  const columns = encodeMessage(type, fields);
  const head = Buffer.alloc(HEAD_BYTES);
  head.writeBigUInt64LE(BigInt(columns.length), 0);
  head.writeBigUInt64LE(sequence, 8);
  head.writeBigUInt64LE(acknowledged, 16);
  const payloads = struct(type).fields.filter((field) => field.isPayload);
  return Buffer.concat([head, columns, ...payloads.flatMap((field) => (fields[field.name] as Uint8Array[] | undefined) ?? [])]);
}

const STATUSES = 5;

/** Throws MalformedMessageError for a Done that contradicts itself. */
function checkOutcomes(fields: Fields): void {
  const { tasks, statuses, results, stored } = fields as Record<"tasks" | "statuses" | "results" | "stored", never[]>;
  if (statuses.length !== tasks.length || results.length !== tasks.length) {
    throw new MalformedMessageError(`${statuses.length} statuses and ${results.length} results of ${tasks.length} tasks`);
  }
  const unknown = (statuses as number[]).find((status) => status >= STATUSES);
  if (unknown !== undefined) throw new MalformedMessageError(`status ${unknown} is unknown`);
  const wrong = (stored as number[]).find((at) => at >= tasks.length);
  if (wrong !== undefined) throw new MalformedMessageError(`result ${wrong} of ${tasks.length} is stored`);
}

/** The message in a frame. Throws MalformedMessageError. */
export function decode(frame: Buffer): Received {
  if (frame.length < HEAD_BYTES) throw new MalformedMessageError(`a frame of ${frame.length} bytes`);
  const end = HEAD_BYTES + Number(frame.readBigUInt64LE(0));
  if (end > frame.length) throw new MalformedMessageError(`columns of ${end - HEAD_BYTES} bytes in ${frame.length}`);
  const [type, fields] = decodeMessage(frame.subarray(HEAD_BYTES, end));
  let at = end;
  for (const field of struct(type).fields.filter((each) => each.isPayload)) {
    fields[field.name] = (fields[field.name] as number[]).map((length) => frame.subarray(at, (at += length)));
  }
  if (at !== frame.length) throw new MalformedMessageError(`a payload of ${frame.length - end} bytes, not ${at - end}`);
  if (type === "Done") checkOutcomes(fields);
  return { type, fields, sequence: frame.readBigUInt64LE(8), acknowledged: frame.readBigUInt64LE(16) };
}
