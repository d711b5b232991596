// The conversations of tests/conformance, held by this client's link with a service that says what they say.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { Router } from "zeromq";

import { Link } from "../dist/link.js";
import { decode } from "../dist/messages.js";

const vectors = JSON.parse(readFileSync(new URL("../../../tests/conformance/links.json", import.meta.url), "utf-8"));
const SECONDS = 20;

/** What comes, in order; `next` waits for it. */
class Queue {
  items = [];

  push(item) {
    this.items.push(item);
    this.wake?.();
  }

  async next(what) {
    const deadline = Date.now() + 1000 * SECONDS;
    while (this.items.length === 0) {
      assert.ok(Date.now() < deadline, `not within ${SECONDS} s: ${what}`);
      await new Promise((resolve) => {
        this.wake = resolve;
        setTimeout(resolve, 100);
      });
    }
    return this.items.shift();
  }
}

/** A service that says what it is told, and a link to it. */
class Conversation {
  heard = new Queue();
  told = new Queue();
  ups = new Queue();

  async begin() {
    await this.listen("tcp://127.0.0.1:*");
    const { told, ups } = this;
    this.link = new Link(
      { address: this.address, timeoutMs: 60_000, keys: undefined, hello: { role: 1, session: 3 } },
      {
        up: () => ups.push("up"),
        lost() {},
        refused: () => told.push("refused"),
        message: ({ type }) => told.push(type),
      },
    );
  }

  async listen(address) {
    this.router = new Router({ linger: 0, mandatory: true });
    const deadline = Date.now() + 1000 * SECONDS;
    for (let bound = false; !bound; ) {
      bound = await this.router.bind(address).then(
        () => true,
        (error) => {
          if (error.code !== "EADDRINUSE" || Date.now() > deadline) throw error; // ZeroMQ frees an address later
          return false;
        },
      );
    }
    this.address = this.router.lastEndpoint;
    void this.receive(this.router);
  }

  async receive(router) {
    for await (const [route, frame] of router) this.heard.push({ route, ...decode(frame) });
  }

  async lose() {
    this.router.close();
    this.heard.items = [];
    await this.listen(this.address);
  }

  async end() {
    await this.link.close();
    this.router.close();
  }

  /** The next message, without those that may come at any time, unless it is one of them that is expected. */
  async hear(type) {
    for (;;) {
      const message = await this.heard.next(type);
      const isOwnHeartbeat = message.type === "Heartbeat" && !message.fields.echo;
      if (message.type !== type && (message.type === "Acknowledge" || isOwnHeartbeat)) continue;
      if (message.type === "Hello") this.route = message.route;
      return message;
    }
  }

  async step(step) {
    if (step.peer) {
      const { type, sequence, acknowledged, fields } = await this.hear(step.peer);
      assert.equal(type, step.peer);
      assert.equal(sequence, BigInt(step.sequence));
      assert.equal(acknowledged, BigInt(step.acknowledged));
      for (const [name, value] of Object.entries(step.fields)) {
        assert.deepEqual(texts(fields[name]), value, `${type}.${name}`);
      }
    } else if (step.service) {
      await this.router.send([this.route, Buffer.from(step.frame, "hex")]);
      if (step.service === "Welcome") await this.ups.next("the link is up");
    } else if (step.program) this.link.send(step.program, decode(Buffer.from(step.frame, "hex")).fields);
    else if (step.delivered) assert.equal(await this.told.next(step.delivered), step.delivered);
    else if (step.refused) assert.equal(await this.told.next("Refused"), "refused");
    else await this.lose();
  }
}

/** Whole numbers of 64 bits are texts in the vectors. */
function texts(value) {
  if (Array.isArray(value)) return value.map(texts);
  return typeof value === "bigint" ? value.toString() : value;
}

for (const { name, steps } of vectors.links) {
  test(name, async () => {
    const conversation = new Conversation();
    await conversation.begin();
    try {
      for (const [number, step] of steps.entries()) {
        await conversation.step(step).catch((error) => {
          error.message = `step ${number}, ${JSON.stringify({ ...step, frame: undefined })}: ${error.message}`;
          throw error;
        });
      }
      assert.deepEqual(conversation.told.items, []);
    } finally {
      await conversation.end();
    }
  });
}

test("that a service is away is told again, for what begins meanwhile", async () => {
  const told = new Queue();
  const away = { address: "tcp://127.0.0.1:9", timeoutMs: 300, keys: undefined, hello: { role: 1, session: 3 } };
  const link = new Link(away, { up() {}, refused() {}, message() {}, lost: (reason) => told.push(reason) });
  for (let at = 0; at < 2; at++) assert.match(await told.next("lost"), /no connection for 0.3 s; is it running/);
  await link.close();
});
