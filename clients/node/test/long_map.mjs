// A map whose cluster is broken meanwhile: `node long_map.mjs ADDRESS CALLS` prints a line when results come
// in, and the number of right results at the end.

import { Client } from "../dist/index.js";

const [address, calls] = process.argv.slice(2);
const client = await Client.connect(address);
const items = Array.from({ length: Number(calls) }, (_, index) => index);
const started = items.map((item) => client.submit("support.tasks:pause_and_add", [item, item]));
await started[10];
console.log("results come in");
const results = await Promise.all(started);
console.log(`${results.filter((value, index) => value === index * 2).length} right`);
await client.close();
