/** The keys of a cluster, as `scaler keys` writes them. */

import { existsSync, readFileSync, statSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";

/** Keys in the 40 characters of Z85: the service's public key and the client's own. */
export interface Keys {
  readonly server: string;
  readonly publicKey: string;
  readonly secretKey: string;
}

const DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

/** ZeroMQ's text form of a key. Source: RFC 32/Z85. */
function z85(bytes: Buffer): string {
  let text = "";
  for (let at = 0; at < bytes.length; at += 4) {
    const value = bytes.readUInt32BE(at);
    for (let power = 4; power >= 0; power--) text += DIGITS[Math.floor(value / 85 ** power) % 85];
  }
  return text;
}

/** The keys in `client.key` of a directory. Throws an Error that names the file and the remedy. */
export function readKeys(directory: string): Keys {
  const file = join(directory.replace(/^~(?=\/|$)/, homedir()), "client.key");
  if (!existsSync(file)) throw new Error(`${file} is not there: copy it from where scaler keys has made it`);
  if ((statSync(file).mode & 0o077) !== 0) throw new Error(`${file} is not private: chmod 600 it`);
  const fields = new Map([...readFileSync(file, "utf-8").matchAll(/^(\w+) = "([^"]*)"$/gm)].map(([, name, value]) => [name, value!]));
  const key = (name: string): string => {
    const value = fields.get(name) ?? "";
    if (!/^[0-9a-f]{64}$/.test(value)) throw new Error(`${file} has no key ${name}: copy the file again`);
    return z85(Buffer.from(value, "hex"));
  };
  return { server: key("server"), publicKey: key("public"), secretKey: key("secret") };
}
