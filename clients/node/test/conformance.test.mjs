// The vectors of tests/conformance, read and written by this client's codec.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { decodeStruct, encodeStruct } from "../dist/capnproto.js";
import { decode, encode } from "../dist/messages.js";
import { struct, TYPES } from "../dist/schema.js";

const vectors = JSON.parse(readFileSync(new URL("../../../tests/conformance/messages.json", import.meta.url), "utf-8"));

const isWide = (field) => field.kind === "int64" || field.kind === "uint64";

/** A value of this client as the vectors have it. */
function asJson(field, value) {
  if (field.name === "groups") return { group: fieldsAsJson("Group", decodeStruct("Group", value)) };
  if (isWide(field)) return value.toString();
  return Buffer.isBuffer(value) ? value.toString("hex") : value;
}

/** A value of the vectors as this client has it. */
function fromJson(field, value) {
  if (field.name === "groups") return encodeStruct("Group", fieldsFromJson("Group", value.group));
  if (isWide(field)) return BigInt(value);
  return field.kind === "data" || field.isPayload ? Buffer.from(value, "hex") : value;
}

const each = (convert) => (field, value) =>
  field.isList ? value.map((entry) => convert(field, entry)) : convert(field, value);
const convertAll = (convert) => (name, fields) =>
  Object.fromEntries(struct(name).fields.map((field) => [field.name, each(convert)(field, fields[field.name])]));
const fieldsAsJson = convertAll(asJson);
const fieldsFromJson = convertAll(fromJson);

test("every type of message has a vector", () => {
  assert.deepEqual(new Set(vectors.messages.map(({ type }) => type)), new Set(TYPES));
});

for (const [number, { type, fields, frame }] of vectors.messages.entries()) {
  test(`${number} ${type}`, () => {
    const read = decode(Buffer.from(frame, "hex"));
    assert.equal(read.type, type);
    assert.equal(read.sequence, BigInt(vectors.sequence));
    assert.equal(read.acknowledged, BigInt(vectors.acknowledged));
    assert.deepEqual(fieldsAsJson(type, read.fields), fields);
    const written = decode(encode(type, fieldsFromJson(type, fields), read.sequence, read.acknowledged));
    assert.deepEqual(fieldsAsJson(type, written.fields), fields);
  });
}
