// hyco-ws as listener and as sender: joined, megabytes, sub-protocols, a reject of the relay, renewal, reconnect.

import { createRequire } from "node:module";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { given, tell } from "./common.mjs";

const hyco = createRequire(import.meta.url)("hyco-ws");
const { host, path, rule, key } = given;
const base = `ws://${host}/$hc/${path}`;
const listenUri = `${base}?sb-hc-action=listen`;
const sendUri = `${base}?sb-hc-action=connect`;
const tokenFor = (uri) => hyco.createRelayToken(uri, rule, key);
const sum = (data) => createHash("sha256").update(data).digest("hex");

const server = hyco.createRelayedServer({ server: listenUri, token: () => tokenFor(listenUri) }, (socket) => {
  socket.on("message", (data) => socket.send(data));
});
server.on("error", () => {});
await once(server, "listening");

async function connected(uri = sendUri, protocols = null) {
  const client = new hyco(uri, protocols, { headers: { ServiceBusAuthorization: tokenFor(uri) } });
  await once(client, "open");
  return client;
}

async function echoed(client, data) {
  const answer = once(client, "message");
  client.send(data);
  return (await answer)[0];
}

const client = await connected();
const text = await echoed(client, "text é");
const large = Buffer.alloc(5_000_000, "0123456789");
const same = sum(await echoed(client, large)) === sum(large);
const ended = once(client, "close");
client.close(4001, "enough");
const code = (await ended)[0];

const chosen = await connected(sendUri, ["first", "second"]);
const protocol = chosen.protocol;
chosen.close();

// A fresh token for the same channel.
server.controlChannel.send(JSON.stringify({ renewToken: { token: tokenFor(listenUri) } }));
const renewed = await connected();
const afterRenewal = await echoed(renewed, "again");
renewed.close();

// The channel breaks: the listener comes back by itself.
const back = once(server, "listening");
server.controlChannel.terminate();
await back;
const later = await connected();
const afterReconnect = await echoed(later, "back");
later.close();

// A sender that shows no token.
const refused = new hyco(sendUri);
const [error] = await once(refused, "error");

server.close();
tell({ text, same, code, protocol, afterRenewal, afterReconnect, refused: String(error.message) });
setTimeout(() => process.exit(0), 200);
