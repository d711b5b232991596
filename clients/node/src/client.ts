/** A client: calls Python functions by their names, with JSON, on the workers of a cluster. */

import { randomBytes } from "node:crypto";
import { hostname } from "node:os";

import { blake2b } from "@noble/hashes/blake2.js";

import { encodeStruct, type Fields } from "./capnproto.js";
import { CancelledError, failure, raised, ScalerError } from "./errors.js";
import { readKeys, type Keys } from "./keys.js";
import { Link } from "./link.js";
import type { Message } from "./messages.js";
import { Storage } from "./storage.js";

const [VALUE, RAISED, , CANCELLED] = [0, 1, 2, 3];
const JSON_ENCODING = 1;
const INLINE_BYTES = 16_384;
const MESSAGE_BYTES = 1024 * 1024;
const MESSAGE_TASKS = 65_536;
const MESSAGE_GROUPS = 256;
const RELEASE_MS = 50;


export interface ClientOptions {
  /** What the cluster calls this client. */
  readonly name?: string;
  /** How long the services may be away before calls fail; 60,000 by default. */
  readonly timeoutMs?: number;
  /** A directory with `client.key`, made by `scaler keys`; none for a cluster that runs with `--insecure`. */
  readonly keys?: string;
}

export interface CallOptions {
  readonly kwargs?: Record<string, unknown>;
  /** Higher runs first; 0 by default. */
  readonly priority?: number;
  /** How often a call that raised is repeated; 0 by default. */
  readonly retries?: number;
  /** From the start of a run; 0, the default, is no limit. */
  readonly timeoutSeconds?: number;
  /** What the worker must offer: least quantities, or -1 for presence. */
  readonly capabilities?: Readonly<Record<string, number>>;
}

/** The result of a call that was submitted. */
export interface Call<T = unknown> extends Promise<T> {
  readonly taskId: bigint;
  /** Cancel the call, queued or running; its promise rejects with CancelledError. Does nothing once it has ended. */
  cancel(): void;
}

interface Task {
  readonly id: bigint;
  readonly group: Buffer;
  readonly function: Buffer;
  readonly name: string;
  /** The call, or the reference to it. */
  payload: Buffer;
  isStored: boolean;
  isSubmitted: boolean;
  resolve(value: unknown): void;
  reject(error: Error): void;
}

export class Client {
  private readonly session = 1 + (randomBytes(4).readUInt32LE() % 0x7fff_fffe);
  private readonly sessionKey = randomBytes(16);
  private readonly keys: Keys | undefined;
  private readonly timeoutMs: number;
  private readonly link: Link;
  private readonly tasks = new Map<bigint, Task>();
  /** Tasks to submit, in order. */
  private queue: Task[] = [];
  /** Functions that the scheduler of this stream was told. */
  private readonly defined = new Set<string>();
  private released: bigint[] = [];
  private releaseTimer: NodeJS.Timeout | undefined;
  private isPumping = false;
  private isUp = false;
  private count = 0;
  private byteCredit = 0;
  private taskCredit = 0;
  private submittedBytes = 0;
  private submittedTasks = 0;
  private welcome: Fields | undefined;
  private storage: Storage | undefined;
  private ended: Error | undefined;
  private connected: { resolve(client: Client): void; reject(error: Error): void } | undefined;

  /** Connect to a scheduler, such as `tcp://127.0.0.1:2345`; rejects if it refuses or does not answer in time. */
  static connect(address: string, options: ClientOptions = {}): Promise<Client> {
    return new Promise((resolve, reject) => new Client(address, options, { resolve, reject }));
  }

  private constructor(
    private readonly address: string,
    options: ClientOptions,
    connected: { resolve(client: Client): void; reject(error: Error): void },
  ) {
    const port = Number(/^tcp:\/\/[^*].*:(\d+)$/.exec(address)?.[1]);
    if (!(port > 0 && port < 65_536) && !/^ipc:\/\/./.test(address)) {
      throw new TypeError(`${address} is no address: give one such as tcp://127.0.0.1:2345`);
    }
    const { keys, name = `node ${process.pid}`, timeoutMs = 60_000, ...others } = options;
    refuseOptions(others, "name, keys, timeoutMs");
    between("timeoutMs", timeoutMs, 0, Infinity, false);
    this.timeoutMs = timeoutMs;
    this.connected = connected;
    this.keys = keys === undefined ? undefined : readKeys(keys);
    const hello = { role: 1, service: 0, session: this.session, name, host: hostname() };
    this.link = new Link(
      { address, timeoutMs: this.timeoutMs, keys: this.keys, hello },
      {
        up: (welcome, resumed) => this.up(welcome, resumed),
        refused: (reasons) => this.end(new ScalerError("HandshakeRefusedError", `${address}: ${reasons.join("; ")}`)),
        lost: (reason) => this.lost(new ScalerError("SchedulerLostError", reason)),
        message: (message) => this.received(message),
      },
    );
  }

  /**
   * Call a function by its name, `module:qualname`, which workers import.
   *
   * Arguments and result are what JSON has; `undefined` is `null`. Throws TypeError for other arguments and options,
   * RangeError for an option out of range.
   */
  submit<T = unknown>(name: string, args: readonly unknown[] = [], options: CallOptions = {}): Call<T> {
    if (this.ended) throw this.ended;
    if (!/^[^:]+:[^:]+$/.test(name)) throw new TypeError(`a function is named module:qualname, not ${name}`);
    if (!Array.isArray(args)) throw new TypeError(`args: give an array, not ${String(args)}`);
    const call = written(args, options.kwargs);
    const described = describe(name, options);
    const id = (BigInt(this.session) << 32n) | BigInt(++this.count);
    const result = new Promise<unknown>((resolve, reject) => {
      const task: Task = {
        id,
        ...described,
        payload: Buffer.from(call),
        isStored: false,
        isSubmitted: false,
        resolve,
        reject,
      };
      this.tasks.set(id, task);
      this.enqueue(task);
    });
    result.catch(() => undefined); // who does not await a call is not told of its error
    return Object.assign(result as Promise<T>, { taskId: id, cancel: () => this.cancel(id) });
  }

  /** Call a function with each item; resolves to the results in order, or rejects as the first call that fails. */
  async map<T = unknown>(name: string, items: Iterable<unknown>, options: CallOptions = {}): Promise<T[]> {
    const calls: Call<T>[] = [];
    try {
      for (const item of items) calls.push(this.submit<T>(name, [item], options));
      return await Promise.all(calls);
    } catch (error) {
      for (const call of calls) call.cancel();
      throw error;
    }
  }

  /** Cancel what is unfinished, and disconnect. */
  async close(): Promise<void> {
    this.release();
    this.end(new ScalerError("ClientQuitError", "this client is closed"));
    await Promise.all([this.link.close(), this.storage?.close()]);
  }

  // --- submitting -----------------------------------------------------------------------------------------------

  private enqueue(task: Task): void {
    if (task.payload.length > INLINE_BYTES && !task.isStored) {
      void this.store(task);
      return;
    }
    this.queue.push(task);
    this.pumpSoon();
  }

  private async store(task: Task): Promise<void> {
    try {
      task.payload = await (await this.objects()).put(task.payload);
      task.isStored = true;
      if (this.tasks.has(task.id)) this.enqueue(task);
      else this.storage?.delete([task.payload]);
    } catch (error) {
      this.settle(task, () => task.reject(error as Error));
    }
  }

  /** Calls of one turn of the event loop travel together. */
  private pumpSoon(): void {
    if (this.isPumping) return;
    this.isPumping = true;
    setImmediate(() => {
      this.isPumping = false;
      this.pump();
    });
  }

  private pump(): void {
    while (this.isUp && this.queue.length > 0) {
      const batch: Task[] = [];
      const groups = new Map<string, number>();
      let bytes = 0;
      let taken = 0;
      for (const task of this.queue) {
        if (this.tasks.get(task.id) !== task) {
          taken++; // it was cancelled
          continue;
        }
        const key = task.group.toString("latin1");
        const size = task.payload.length;
        const isFull = batch.length > 0 && (bytes + size > MESSAGE_BYTES || batch.length === MESSAGE_TASKS);
        if (isFull || (!groups.has(key) && groups.size === MESSAGE_GROUPS) || !this.hasCredit(size, batch.length, bytes)) break;
        if (!groups.has(key)) groups.set(key, groups.size);
        batch.push(task);
        bytes += size;
        taken++;
      }
      this.queue.splice(0, taken);
      if (batch.length === 0) return;
      this.submitBatch(batch, groups);
    }
  }

  /** Whether one more call may be submitted beside `count` others of `bytes`. A single one always may. */
  private hasCredit(size: number, count: number, bytes: number): boolean {
    const total = this.submittedBytes + bytes;
    const tasks = this.submittedTasks + count;
    return (total === 0 || total + size <= this.byteCredit) && (this.taskCredit === 0 || tasks < this.taskCredit);
  }

  private submitBatch(batch: Task[], groups: Map<string, number>): void {
    const functions: Buffer[] = [];
    const names: string[] = [];
    for (const task of batch) {
      if (!this.defined.has(task.name)) {
        this.defined.add(task.name);
        functions.push(task.function);
        names.push(task.name);
      }
      task.isSubmitted = true;
      this.submittedBytes += task.payload.length;
      this.submittedTasks += 1;
    }
    this.link.send("Submit", {
      groups: [...groups.keys()].map((key) => Buffer.from(key, "latin1")),
      tasks: batch.map((task) => task.id),
      taskGroups: groups.size > 1 ? batch.map((task) => groups.get(task.group.toString("latin1"))!) : [],
      calls: batch.map((task) => task.payload),
      stored: batch.flatMap((task, at) => (task.isStored ? [at] : [])),
      functions,
      names,
      bodies: functions.map(() => Buffer.alloc(0)),
    });
  }

  private cancel(id: bigint): void {
    const task = this.tasks.get(id);
    if (task === undefined) return;
    if (task.isSubmitted) this.link.send("Cancel", { tasks: [id] });
    this.settle(task, () => task.reject(new CancelledError("the call was cancelled")));
  }

  // --- what the scheduler says ----------------------------------------------------------------------------------

  private up(welcome: Fields, resumed: boolean): void {
    const isFirst = this.welcome === undefined;
    this.welcome = welcome;
    this.byteCredit = Number(welcome.sessionCredit);
    this.taskCredit = Number(welcome.taskCredit);
    this.isUp = true;
    if (!resumed) {
      this.defined.clear();
      const wanted = [...this.tasks.values()].filter((task) => task.isSubmitted).map((task) => task.id);
      for (let at = 0; !isFirst && (at === 0 || at < wanted.length); at += MESSAGE_TASKS) {
        this.link.send("Reconcile", { wanted: wanted.slice(at, at + MESSAGE_TASKS) });
      }
    }
    this.connected?.resolve(this);
    this.connected = undefined;
    this.pumpSoon();
  }

  private received({ type, fields }: Message): void {
    if (type === "Done") this.done(fields);
    else if (type === "NeedTasks") this.submitAgain(fields.tasks as bigint[]);
    else if (type === "NeedFunctions") this.define(fields.functions as Buffer[]);
    else if (type === "DeleteObjects") this.storage?.delete(fields.objects as Buffer[]);
    else if (type === "Goodbye") {
      const reason = fields.reason ? `: ${fields.reason as string}` : "";
      this.lost(new ScalerError("SchedulerLostError", `the cluster at ${this.address} has ended${reason}`));
    } else if (type === "TaskCredit") {
      this.taskCredit = Number(fields.tasks);
      this.pumpSoon();
    }
  }

  private done(fields: Fields): void {
    const results = fields.results as Buffer[];
    const stored = new Set(fields.stored as number[]);
    (fields.tasks as bigint[]).forEach((id, at) => {
      const task = this.tasks.get(id);
      this.releaseLater(id);
      if (task === undefined) {
        if (stored.has(at)) void this.objects().then((objects) => objects.delete([results[at]!]));
        return;
      }
      const status = (fields.statuses as number[])[at]!;
      if (stored.has(at)) void this.fetch(task, status, Buffer.from(results[at]!));
      else this.outcome(task, status, results[at]!);
    });
  }

  private async fetch(task: Task, status: number, reference: Buffer): Promise<void> {
    try {
      if (reference.length !== 24) throw new ScalerError("ProtocolError", `a reference has 24 bytes, not ${reference.length}`);
      const objects = await this.objects();
      const payload = await objects.get(reference);
      objects.delete([reference]);
      this.outcome(task, status, payload);
    } catch (error) {
      this.settle(task, () => task.reject(error as Error));
    }
  }

  private outcome(task: Task, status: number, payload: Buffer): void {
    this.settle(task, () => {
      if (status === VALUE) task.resolve(parsed(payload));
      else if (status === RAISED) task.reject(raised(payload));
      else if (status === CANCELLED) task.reject(new CancelledError("the call was cancelled"));
      else task.reject(failure(payload));
    });
  }

  /** End a task for this client. */
  private settle(task: Task, tell: () => void): void {
    if (!this.tasks.delete(task.id)) return;
    if (task.isSubmitted) {
      this.submittedBytes -= task.payload.length;
      this.submittedTasks -= 1;
    }
    if (task.isStored) this.storage?.delete([task.payload]);
    tell();
    this.pumpSoon();
  }

  private submitAgain(ids: bigint[]): void {
    for (const id of ids) {
      const task = this.tasks.get(id);
      if (task?.isSubmitted !== true) continue;
      task.isSubmitted = false;
      this.submittedBytes -= task.payload.length;
      this.submittedTasks -= 1;
      this.queue.push(task);
    }
    this.pumpSoon();
  }

  private define(wanted: Buffer[]): void {
    const names = new Map([...this.tasks.values()].map((task) => [task.function.toString("hex"), task.name]));
    const known = wanted.filter((each) => names.has(each.toString("hex")));
    if (known.length === 0) return;
    this.link.send("Functions", {
      functions: known,
      names: known.map((each) => names.get(each.toString("hex"))!),
      bodies: known.map(() => Buffer.alloc(0)),
    });
  }

  private releaseLater(id: bigint): void {
    this.released.push(id);
    this.releaseTimer ??= setTimeout(() => this.release(), RELEASE_MS);
  }

  private release(): void {
    clearTimeout(this.releaseTimer);
    this.releaseTimer = undefined;
    for (let at = 0; at < this.released.length; at += MESSAGE_TASKS) {
      this.link.send("Release", { tasks: this.released.slice(at, at + MESSAGE_TASKS) });
    }
    this.released = [];
  }

  // --- object storage, and the end ------------------------------------------------------------------------------

  /** The connection to object storage, which begins when it is needed first. */
  private async objects(): Promise<Storage> {
    if (this.storage === undefined) {
      const address = (this.welcome?.storageAddress as string | undefined) ?? "";
      if (address === "") throw new ScalerError("StorageLostError", `${this.address} names no object storage server`);
      const token = Buffer.from(this.welcome!.sessionToken as Uint8Array);
      this.storage = new Storage(address, this.session, this.timeoutMs, this.keys, token, this.sessionKey);
    }
    return this.storage;
  }

  private lost(error: Error): void {
    if (this.connected) this.end(error);
    else for (const task of [...this.tasks.values()]) this.settle(task, () => task.reject(error));
  }

  private end(error: Error): void {
    if (this.ended) return;
    this.ended = error;
    const running = [...this.tasks.values()].filter((task) => task.isSubmitted).map((task) => task.id);
    for (let at = 0; at < running.length; at += MESSAGE_TASKS) {
      this.link.send("Cancel", { tasks: running.slice(at, at + MESSAGE_TASKS) });
    }
    for (const task of [...this.tasks.values()]) this.settle(task, () => task.reject(error));
    if (this.connected) {
      this.connected.reject(error);
      this.connected = undefined;
      void this.link.close();
    }
  }
}

/** A call as JSON. Throws TypeError for what JSON lacks, of which `JSON.stringify` may make null. */
function written(args: readonly unknown[], kwargs: CallOptions["kwargs"]): string {
  const call = kwargs === undefined ? args : { args, kwargs };
  try {
    const text = JSON.stringify(call);
    if (!text.includes("null")) return text;
  } catch {
    // the next lines throw, and name the argument
  }
  for (const [name, value] of [...args.entries(), ...Object.entries(kwargs ?? {})]) {
    JSON.stringify(value, (_, part: unknown) => {
      const isNumber = typeof part === "number" && Number.isFinite(part);
      if (isNumber || !["number", "bigint", "function", "symbol"].includes(typeof part)) return part;
      throw new TypeError(`argument ${name}: ${typeof part} ${String(part).slice(0, 100)} is not JSON`);
    });
  }
  return JSON.stringify(call);
}

/** A result; an error if it is not JSON, as what other programs have sent may be. */
function parsed(payload: Buffer): unknown {
  try {
    return JSON.parse(payload.toString());
  } catch (error) {
    return Promise.reject(new ScalerError("DeserializeError", `the result is not JSON: ${(error as Error).message}`));
  }
}

type Description = Pick<Task, "group" | "function" | "name">;

const DESCRIBED_MOST = 1024;
/** What calls of a function with the same options share, by these; the first ones leave first. */
const descriptions = new Map<string, Description>();

function describe(name: string, options: CallOptions): Description {
  const { kwargs: _, priority = 0, retries = 0, timeoutSeconds = 0, capabilities = {}, ...others } = options;
  refuseOptions(others, "kwargs, priority, retries, timeoutSeconds, capabilities");
  check(name, priority, retries, timeoutSeconds, Object.entries(capabilities));
  const key = JSON.stringify([name, priority, retries, timeoutSeconds, capabilities]);
  let found = descriptions.get(key);
  if (found === undefined) {
    found = description(name, { priority, retries, timeoutSeconds, capabilities });
    descriptions.set(key, found);
    if (descriptions.size > DESCRIBED_MOST) descriptions.delete(descriptions.keys().next().value!);
  }
  return found;
}

/** Throws RangeError for what the scheduler refuses: it ends the connection of a client that sends that. */
function check(name: string, priority: number, retries: number, seconds: number, capabilities: [string, number][]): void {
  between("bytes of the function's name", Buffer.byteLength(name), 0, 4096);
  between("priority", priority, -(2 ** 31), 2 ** 31 - 1);
  between("retries", retries, 0, 65_535);
  between("timeoutSeconds", seconds, 0, 1e9, false);
  between("number of capabilities", capabilities.length, 0, 256);
  for (const [capability, value] of capabilities) {
    if (!/^([^=,\p{C}\p{Z}]| )+$/u.test(capability) || Buffer.byteLength(capability) > 256) {
      throw new RangeError(`capability ${JSON.stringify(capability)}: a name has 1 to 256 printable bytes without = ,`);
    }
    between(`capability ${capability}`, value, -1, Number.MAX_SAFE_INTEGER);
  }
}

function between(what: string, value: unknown, least: number, most: number, isWhole = true): void {
  if (typeof value === "number" && value >= least && value <= most && (!isWhole || Number.isInteger(value))) return;
  throw new RangeError(`${what}: ${String(value)} is not a ${isWhole ? "whole " : ""}number from ${least} to ${most}`);
}

function refuseOptions(others: object, known: string): void {
  for (const name in others) throw new TypeError(`there is no option ${name}: there are ${known}`);
}

/** The group and the function of calls by name. */
function description(name: string, options: Required<Omit<CallOptions, "kwargs">>): Description {
  const { capabilities, ...others } = options;
  const names = Object.keys(capabilities).sort();
  const id = Buffer.from(blake2b(Buffer.concat([Buffer.from([1]), Buffer.from(name)]), { dkLen: 16 }));
  const group = encodeStruct("Group", {
    function: id,
    capabilityNames: names,
    capabilityValues: names.map((each) => BigInt(capabilities[each]!)),
    ...others,
    encoding: JSON_ENCODING,
  });
  return { group, function: id, name };
}
