// Calls one after the other: `node alone.mjs ADDRESS CALLS TIMEOUT_MS` prints how each has ended.

import { Client } from "../dist/index.js";

const [address, calls, timeoutMs] = process.argv.slice(2);
const client = await Client.connect(address, { timeoutMs: Number(timeoutMs) });
for (let call = 0; call < Number(calls); call++) {
  await client.submit("math:sqrt", [call]).then(
    (value) => console.log(`value ${JSON.stringify(value)}`),
    (error) => console.log(`${error.name} ${error.message}`),
  );
}
await client.close();
