/** Objects over the wire, section 5 of the protocol: bytes too long for a message travel through object storage. */

import { randomBytes } from "node:crypto";

import type { Fields } from "./capnproto.js";
import { failure, ScalerError } from "./errors.js";
import type { Keys } from "./keys.js";
import { Link } from "./link.js";
import type { Message } from "./messages.js";

const PART_BYTES = 1024 * 1024;
/** Parts that are under way at a time. */
const WINDOW = 8;

interface Operation {
  /** Begin, or begin again on a new stream. */
  begin(): void;
  answered(fields: Fields): void;
  fail(error: Error): void;
}

/** Where an object is, as messages name it: 16 bytes of its id, and its size. */
export type Reference = Buffer;

export class Storage {
  private readonly link: Link;
  private readonly operations = new Map<bigint, Operation>();
  private isUp = false;
  private numbers = 0n;
  private failed: Error | undefined;

  constructor(
    address: string,
    private readonly session: number,
    timeoutMs: number,
    keys: Keys | undefined,
    token: Uint8Array,
    sessionKey: Uint8Array,
  ) {
    const hello = { role: 1, service: 1, session, sessionKey, sessionToken: token, name: "Node" };
    this.link = new Link(
      { address, timeoutMs, keys, hello },
      {
        up: (_, resumed) => this.up(resumed),
        refused: (reasons) => this.fail(new ScalerError("HandshakeRefusedError", `${address}: ${reasons.join("; ")}`)),
        lost: (reason) => this.fail(new ScalerError("StorageLostError", reason), false),
        message: (message) => this.received(message),
      },
    );
  }

  /** Store bytes; resolves to their reference. */
  put(bytes: Buffer): Promise<Reference> {
    const object = randomBytes(16);
    const count = Math.max(1, Math.ceil(bytes.length / PART_BYTES));
    const reference = Buffer.alloc(24);
    object.copy(reference);
    reference.writeBigUInt64LE(BigInt(bytes.length), 16);
    return this.operation<Reference>((request, resolve) => {
      let next = 0;
      let stored = 0;
      const send = (): void => {
        for (; next < count && next - stored < WINDOW; next++) {
          const offset = next * PART_BYTES;
          this.link.send("PutObject", {
            request,
            object,
            session: this.session,
            size: BigInt(bytes.length),
            offset: BigInt(offset),
            parts: [bytes.subarray(offset, offset + PART_BYTES)],
          });
        }
      };
      return {
        begin: () => {
          next = stored = 0;
          send();
        },
        answered: () => {
          stored += 1;
          if (stored === count) resolve(reference);
          else send();
        },
      };
    });
  }

  /** The bytes of a stored object. */
  get(reference: Reference): Promise<Buffer> {
    const object = reference.subarray(0, 16);
    const size = Number(reference.readBigUInt64LE(16));
    return this.operation<Buffer>((request, resolve, reject) => {
      const bytes = Buffer.alloc(size);
      let version: bigint | undefined;
      let asked = 0;
      let come = 0;
      const ask = (): void => {
        for (; asked < size && asked - come < WINDOW * PART_BYTES; asked += PART_BYTES) {
          this.link.send("GetObject", { request, object, offset: BigInt(asked), limit: PART_BYTES });
        }
      };
      const begin = (): void => {
        version = undefined;
        asked = come = 0;
        if (size === 0) resolve(bytes);
        ask();
      };
      return {
        begin,
        answered: (fields) => {
          if (fields.found !== true) {
            return reject(new ScalerError("ObjectNotFoundError", `object ${object.toString("hex")} is not stored`));
          }
          version ??= fields.version as bigint;
          if (fields.version !== version) {
            return reject(new ScalerError("ObjectNotFoundError", `object ${object.toString("hex")} was replaced`));
          }
          const part = (fields.parts as Buffer[])[0] ?? Buffer.alloc(0);
          if (part.length !== Math.min(PART_BYTES, size - come)) {
            const fault = `a part at ${come} has ${part.length} bytes`;
            return reject(new ScalerError("ObjectNotFoundError", `no object ${object.toString("hex")} of ${size} bytes is stored: ${fault}`));
          }
          part.copy(bytes, come);
          come += part.length;
          if (come === size) resolve(bytes);
          else ask();
        },
      };
    });
  }

  /** Objects that are needed no longer. */
  delete(references: readonly Uint8Array[]): void {
    const objects = references.map((reference) => reference.subarray(0, 16));
    for (let at = 0; at < objects.length; at += 4096) {
      this.link.send("DeleteObjects", { objects: objects.slice(at, at + 4096), session: this.session });
    }
  }

  close(): Promise<void> {
    this.fail(new ScalerError("ClientQuitError", "this client is closed"));
    return this.link.close();
  }

  private operation<T>(
    make: (
      request: bigint,
      resolve: (value: T) => void,
      reject: (error: Error) => void,
    ) => Pick<Operation, "begin" | "answered">,
  ): Promise<T> {
    if (this.failed) return Promise.reject(this.failed);
    const request = ++this.numbers;
    return new Promise<T>((resolve, reject) => {
      const end = <V>(settle: (value: V) => void) => (value: V): void => {
        this.operations.delete(request);
        settle(value);
      };
      const fail = end(reject as (error: Error) => void);
      const operation = { ...make(request, end(resolve), fail), fail };
      this.operations.set(request, operation);
      if (this.isUp) operation.begin();
    });
  }

  private up(resumed: boolean): void {
    this.isUp = true;
    if (!resumed) for (const operation of [...this.operations.values()]) operation.begin();
  }

  private received({ fields }: Message): void {
    const operation = this.operations.get(fields.request as bigint);
    if (operation === undefined) return;
    if (fields.error) operation.fail(failure(Buffer.from(fields.error as string)));
    else operation.answered(fields);
  }

  private fail(error: Error, forGood = true): void {
    if (forGood) this.failed = error;
    for (const operation of [...this.operations.values()]) operation.fail(error);
  }
}
