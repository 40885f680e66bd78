// hyco-ws as sender to a listener of ours: accepted with a sub-protocol, megabytes and closes both ways, and rejected.

import { createRequire } from "node:module";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { given, tell } from "./common.mjs";

const hyco = createRequire(import.meta.url)("hyco-ws");
const { host, path, rule, key } = given;
const sum = (data) => createHash("sha256").update(data).digest("hex");

function open(suffix, protocols = null) {
  const uri = `ws://${host}/$hc/${path}${suffix}?sb-hc-action=connect&room=1`;
  const headers = { ServiceBusAuthorization: hyco.createRelayToken(`ws://${host}/$hc/${path}`, rule, key) };
  return new hyco(uri, protocols, { headers });
}

const client = open("/echo", ["first", "second"]);
await once(client, "open");
const large = Buffer.alloc(5_000_000, "0123456789");
const echoed = once(client, "message");
client.send(large);
const same = sum((await echoed)[0]) === sum(large);
const ended = once(client, "close");
client.send("close");
const [code, reason] = await ended;

const [error] = await once(open("/reject"), "error");
tell({ protocol: client.protocol, same, code, reason: String(reason), rejected: String(error.message) });
setTimeout(() => process.exit(0), 200);
