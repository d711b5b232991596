// Calls on a real cluster, whose scheduler is at SCALER_ADDRESS, and whose keys are in SCALER_KEYS.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { CancelledError, Client, RemoteError, ScalerError } from "../dist/index.js";

const { SCALER_ADDRESS: address, SCALER_KEYS: keys } = process.env;

let client;
before(async () => {
  client = await Client.connect(address, { name: "tests of the Node client", keys });
});
after(() => client.close());

test("a result", async () => {
  assert.equal(await client.submit("math:sqrt", [16]), 4);
  assert.deepEqual(await client.submit("builtins:sorted", [[3, 1, 2]], { kwargs: { reverse: true } }), [3, 2, 1]);
});

test("an exception has type, text and traceback", async () => {
  await assert.rejects(client.submit("support.tasks:explode", ["no"]), (error) => {
    assert.ok(error instanceof RemoteError);
    assert.equal(error.name, "ValueError");
    assert.equal(error.message, "no");
    assert.match(error.traceback, /^Traceback[^]*in explode/);
    return true;
  });
});

test("an error of the engine has its name", async () => {
  await assert.rejects(client.submit("no_such_module:function"), (error) => {
    assert.ok(error instanceof ScalerError);
    assert.equal(error.name, "DeserializeError");
    assert.match(error.message, /no_such_module/);
    return true;
  });
});

test("options: a timeout, capabilities that nobody has, priority and retries", async () => {
  await assert.rejects(client.submit("time:sleep", [60], { timeoutSeconds: 0.2 }), { name: "TaskTimeoutError" });
  const waiting = client.submit("math:sqrt", [4], { capabilities: { unobtainable: 1 } });
  assert.equal(await client.submit("math:sqrt", [4], { priority: 5, retries: 2 }), 2);
  waiting.cancel();
  await assert.rejects(waiting, CancelledError);
});

test("a running call is cancelled", async () => {
  const sleeping = client.submit("time:sleep", [60]);
  await client.submit("math:sqrt", [4]);
  sleeping.cancel();
  await assert.rejects(sleeping, CancelledError);
});

test("long arguments and results travel through object storage", async () => {
  assert.equal(await client.submit("builtins:len", ["x".repeat(3_000_000)]), 3_000_000);
  const long = await client.submit("operator:mul", ["ab", 1_500_000]);
  assert.equal(long, "ab".repeat(1_500_000));
});

test("a map of 100,000 calls", async () => {
  const results = await client.map("builtins:abs", Array.from({ length: 100_000 }, (_, index) => -index));
  assert.equal(results.length, 100_000);
  assert.ok(results.every((value, index) => value === index));
});

test("the first failure of a map is thrown, and the client goes on", async () => {
  await assert.rejects(client.map("math:sqrt", [1, -1, 4]), { name: "ValueError" });
  assert.deepEqual(await client.map("math:sqrt", [1, 4]), [1, 2]);
  assert.deepEqual(await client.map("math:sqrt", []), []);
});

test("what the scheduler or JSON would refuse ends neither the client nor its other calls", async () => {
  const other = client.submit("time:sleep", [0.3]);
  for (const wrong of [{ priority: 2 ** 31 }, { retries: -1 }, { timeoutSeconds: -1 }, { capabilities: { "a=b": 1 } }]) {
    assert.throws(() => client.submit("math:sqrt", [4], wrong), RangeError);
  }
  assert.throws(() => client.submit(`math:${"x".repeat(5000)}`), RangeError);
  await assert.rejects(client.submit("builtins:float", ["nan"]), { name: "ResultNotSerializableError" });
  assert.equal(await other, null);
  await assert.rejects(Client.connect("nowhere"), /such as tcp:/);
});

test("what JSON would change is refused, by its name", () => {
  for (const wrong of [NaN, -Infinity, () => 1, Symbol("x"), 5n]) {
    assert.throws(() => client.submit("builtins:repr", [1, { a: [wrong] }]), (error) => {
      assert.ok(error instanceof TypeError);
      assert.match(error.message, /^argument 1: .* is not JSON/);
      assert.ok(error.message.includes(String(wrong)), error.message);
      return true;
    });
  }
  assert.throws(() => client.submit("builtins:repr", "text"), /args: give an array, not text/);
});

test("null and undefined are None, and texts may be null", async () => {
  assert.equal(await client.submit("builtins:repr", [[null, undefined, "null"]]), "[None, None, 'null']");
});

test("an option is checked also where the same call had none before", async () => {
  await client.submit("math:sqrt", [4]);
  for (const wrong of [{ timeoutSeconds: NaN }, { priority: null }, { retries: Infinity }]) {
    assert.throws(() => client.submit("math:sqrt", [4], wrong), RangeError);
  }
  assert.throws(() => client.submit("math:sqrt", [4], { timeout: 3 }), /no option timeout: .* timeoutSeconds/);
});

test("a map whose items end with an error cancels what it has submitted", async () => {
  function* items() {
    for (let at = 0; at < 4; at++) yield 60;
    throw new Error("no more items");
  }
  await assert.rejects(client.map("time:sleep", items()), /no more items/);
  assert.equal(await client.submit("math:sqrt", [4]), 2); // the workers are free
  await assert.rejects(client.map("math:sqrt", 5), TypeError);
});

test("who gives a wrong name or a wrong address is told", async () => {
  for (const wrong of ["tcp://127.0.0.1:99999", "tcp://127.0.0.1:0", "tcp://*:2345", "", undefined]) {
    await assert.rejects(Client.connect(wrong, { timeoutMs: 300 }), { name: "TypeError", message: /such as tcp:/ });
  }
  await assert.rejects(Client.connect(address, { timeoutMs: NaN }), /timeoutMs: NaN is not a number/);
  await assert.rejects(Client.connect(address, { timeout: 300 }), /no option timeout: .* timeoutMs/);
  assert.throws(() => client.submit("sqrt"), /module:qualname/);
  const storage = address.replace(/\d+$/, (port) => Number(port) + 1);
  await assert.rejects(Client.connect(storage, { keys }), /give that of the scheduler/);
  await assert.rejects(Client.connect(address, { timeoutMs: 300 }), /it may demand keys/);
  await assert.rejects(Client.connect(address, { keys: "/nowhere" }), /nowhere.client.key.*: copy it/);
  const nobody = { name: "SchedulerLostError", message: /is it running/ };
  await assert.rejects(Client.connect("tcp://127.0.0.1:9", { timeoutMs: 300 }), nobody);
});
