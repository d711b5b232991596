/**
 * The connecting side of a link, sections 1.2 to 1.4 of the protocol.
 *
 * Numbered messages are kept until they are acknowledged. When a connection breaks, the next one resumes the stream if
 * the service still knows it, and otherwise begins a new one, in which nothing of the old one is sent again.
 */

import { randomBytes } from "node:crypto";
import { Dealer } from "zeromq";

import { MalformedMessageError, type Fields } from "./capnproto.js";
import type { Keys } from "./keys.js";
import { decode, encode, isNumbered, type Message } from "./messages.js";

const GREETING_MS = 2000;
const FIRST_RETRY_MS = 50;
const LAST_RETRY_MS = 1000;
const ACKNOWLEDGE_MS = 50;
const ACKNOWLEDGE_MESSAGES = 256;
const IS_AWAY = "is it running?";
/** Where a frame says what its sender has received. */
const ACKNOWLEDGED_AT = 16;
const PROTOCOL = 2;

export interface Events {
  /** A connection was made; `resumed` unless both sides begin a new stream. */
  up(welcome: Fields, resumed: boolean): void;
  /** The service refuses this peer for good. */
  refused(reasons: string[]): void;
  /** No connection for longer than the timeout; attempts go on. */
  lost(reason: string): void;
  message(message: Message): void;
}

export interface LinkOptions {
  readonly address: string;
  readonly timeoutMs: number;
  readonly keys: Keys | undefined;
  /** What this peer says of itself; it is completed with identity, epoch and stream. */
  readonly hello: Fields;
}

export class Link {
  readonly identity = randomBytes(16);
  private readonly incarnation = BigInt(1 + (randomBytes(4).readUInt32LE() % 0xff_fffe));
  private readonly secret = randomBytes(16).toString("hex");
  private epoch = 0;
  private peerIncarnation = 0n;
  private sent = 0n;
  private received = 0n;
  private owed = 0;
  private kept: { sequence: bigint; frame: Buffer }[] = [];
  private out: Buffer[] = [];
  private socket: Dealer | undefined;
  private isUp = false;
  /** Whether a valid message has come after Welcome: a service may say nothing else. */
  private isThere = false;
  private isWriting = false;
  private isClosed = false;
  private downSince = Date.now();
  private heardAt = Date.now();
  /** Why there may be no connection. */
  private failure = IS_AWAY;
  private heartbeatMs = 1000;
  private acknowledgeTimer: NodeJS.Timeout | undefined;
  private readonly ended: Promise<void>;
  private wake: (() => void) | undefined;

  constructor(
    private readonly options: LinkOptions,
    private readonly events: Events,
  ) {
    this.ended = this.run();
  }

  /** Send now, or when the stream is resumed; it is lost if a new one begins, and `up` tells that. */
  send(type: string, fields: Fields): void {
    const sequence = isNumbered(type) ? ++this.sent : 0n;
    const frame = encode(type, fields, sequence, this.received);
    if (sequence !== 0n) this.kept.push({ sequence, frame });
    if (!this.isUp) return;
    this.owed = 0;
    this.write(frame);
  }

  /** Say goodbye, and close the connection once that is written. */
  async close(): Promise<void> {
    if (this.isClosed) return this.ended;
    this.send("Goodbye", {});
    this.isClosed = true;
    for (let waited = 0; this.isUp && (this.out.length > 0 || this.isWriting) && waited < 200; waited += 5) {
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    this.wake?.();
    this.socket?.close();
    await this.ended;
  }

  private async run(): Promise<void> {
    let retry = FIRST_RETRY_MS;
    const watch = setInterval(() => this.watch(), 250);
    while (!this.isClosed) {
      try {
        if (await this.connection()) retry = FIRST_RETRY_MS;
      } catch (error) {
        this.isClosed = true; // as for an address that ZeroMQ does not take; another attempt would end likewise
        this.events.refused([String(error)]);
      }
      if (this.isClosed) break;
      await new Promise<void>((resolve) => {
        this.wake = resolve;
        setTimeout(resolve, retry);
      });
      retry = Math.min(2 * retry, LAST_RETRY_MS);
    }
    clearInterval(watch);
  }

  /** One epoch, until its connection ends; returns whether the service was there. */
  private async connection(): Promise<boolean> {
    this.epoch += 1;
    const { address, keys, hello } = this.options;
    const socket = new Dealer({
      routingId: `${this.secret}${this.epoch.toString(16).padStart(8, "0")}`,
      linger: 200,
      ipv6: true,
      sendHighWaterMark: 0,
      receiveHighWaterMark: 0,
      tcpKeepalive: 1,
      heartbeatInterval: 2000,
      heartbeatTimeToLive: 10_000,
      heartbeatTimeout: 10_000,
      ...(keys && { curveServerKey: keys.server, curvePublicKey: keys.publicKey, curveSecretKey: keys.secretKey }),
    });
    socket.events.on("disconnect", () => socket.close());
    for (const failure of ["handshake:error:protocol", "handshake:error:auth", "handshake:error:other"] as const) {
      socket.events.on(failure, () => {
        this.failure = keys ? "the service has other keys, or does not accept this one" : "it may demand keys";
        socket.close();
      });
    }
    this.socket = socket;
    this.out = [];
    this.isWriting = false;
    const greeting = setTimeout(() => socket.close(), GREETING_MS);
    this.isThere = false;
    try {
      socket.connect(address);
      this.write(
        encode(
          "Hello",
          {
            ...hello,
            protocol: PROTOCOL,
            identity: this.identity,
            incarnation: this.incarnation,
            epoch: this.epoch,
            peerIncarnation: this.peerIncarnation,
            received: this.received,
          },
          0n,
          this.received,
        ),
      );
      for await (const frames of socket) {
        this.heardAt = Date.now();
        const message = decode(frames.length === 1 ? frames[0]! : Buffer.alloc(0));
        if (!this.take(message)) continue;
        if (message.type === "Welcome") clearTimeout(greeting);
        if (message.type === "NeedHello" || message.type === "Refused") break;
      }
    } catch (error) {
      if (!(error instanceof MalformedMessageError) && !socket.closed) throw error;
    }
    clearTimeout(greeting);
    clearTimeout(this.acknowledgeTimer);
    this.acknowledgeTimer = undefined;
    if (this.isThere) this.downSince = Date.now();
    this.isUp = false;
    socket.close();
    return this.isThere;
  }

  /** Process a message; returns whether it counts, for it may be a duplicate. */
  private take(message: ReturnType<typeof decode>): boolean {
    const { type, fields, sequence, acknowledged } = message;
    if (type === "Welcome") {
      if (!this.isUp) this.welcomed(fields);
      return true;
    }
    if (type === "Refused") {
      this.isClosed = true;
      const reasons = (fields.reasons as string[]).filter(Boolean);
      this.events.refused(reasons.length > 0 ? reasons : ["it gave no reason"]);
      return true;
    }
    if (!this.isUp || type === "NeedHello") return type === "NeedHello";
    if (acknowledged > this.sent) {
      this.peerIncarnation = 0n; // the two sides disagree about the stream
      throw new MalformedMessageError("it acknowledges what was not sent");
    }
    this.acknowledge(acknowledged);
    if (sequence === 0n && isNumbered(type)) throw new MalformedMessageError(`${type} must be numbered`);
    if (sequence !== 0n) {
      if (sequence <= this.received) return false;
      if (sequence !== this.received + 1n) throw new MalformedMessageError("the connection has lost a message");
      this.received = sequence;
      this.owe();
    }
    this.isThere = true;
    if (type === "Heartbeat") {
      this.heartbeatMs = 1000 * (fields.seconds as number) || this.heartbeatMs;
      if (fields.echo === false) this.send("Heartbeat", { sent: fields.sent, echo: true });
    } else if (sequence !== 0n) this.events.message(message);
    return true;
  }

  private welcomed(welcome: Fields): void {
    const resumed = welcome.resumed === true && welcome.incarnation === this.peerIncarnation;
    this.peerIncarnation = welcome.incarnation as bigint;
    this.heartbeatMs = 1000 * (welcome.heartbeatSeconds as number);
    this.isUp = true;
    this.failure = IS_AWAY;
    if (resumed) {
      this.acknowledge(welcome.received as bigint);
      for (const { frame } of this.kept) {
        frame.writeBigUInt64LE(this.received, ACKNOWLEDGED_AT);
        this.write(frame);
      }
    } else {
      this.sent = this.received = 0n;
      this.kept = [];
    }
    this.owed = 0;
    this.events.up(welcome, resumed);
  }

  private acknowledge(sequence: bigint): void {
    const first = this.kept.findIndex((each) => each.sequence > sequence);
    this.kept = first === -1 ? [] : this.kept.slice(first);
  }

  /** A message must be acknowledged, with others or soon. */
  private owe(): void {
    this.owed += 1;
    if (this.owed >= ACKNOWLEDGE_MESSAGES) this.acknowledgeNow();
    else this.acknowledgeTimer ??= setTimeout(() => this.acknowledgeNow(), ACKNOWLEDGE_MS);
  }

  private acknowledgeNow(): void {
    clearTimeout(this.acknowledgeTimer);
    this.acknowledgeTimer = undefined;
    if (this.owed > 0) this.send("Acknowledge", {});
    this.owed = 0;
  }

  /** Detect silence, and tell that the service is away for too long. */
  private watch(): void {
    const now = Date.now();
    const { timeoutMs, address } = this.options;
    if (this.isUp && now > this.heardAt + Math.max(timeoutMs, 3 * this.heartbeatMs)) this.socket?.close();
    if (!this.isUp && now > this.downSince + timeoutMs) {
      this.downSince = now; // so that what the program begins later has a timeout, too
      this.events.lost(`${address}: no connection for ${timeoutMs / 1000} s; ${this.failure}`);
    }
  }

  /** ZeroMQ takes one message at a time. */
  private write(frame: Buffer): void {
    this.out.push(frame);
    if (!this.isWriting) void this.drain(this.socket!);
  }

  private async drain(socket: Dealer): Promise<void> {
    this.isWriting = true;
    try {
      for (let frame; socket === this.socket && (frame = this.out.shift()) !== undefined; ) await socket.send(frame);
    } catch (error) {
      if (!socket.closed) throw error; // else what was not written is sent again with the next epoch
    } finally {
      if (socket === this.socket) this.isWriting = false;
    }
  }
}
