// Both packages as listeners whose tokens last seconds: renewed by their own timer, and replaced when one has ended.

import { createRequire } from "node:module";
import { once } from "node:events";
import { given, tell } from "./common.mjs";

const HOUR = 3_600_000;
const plain = globalThis.setInterval;
let renewsSoon = true;
// The packages renew each hour; here that hour takes a second, where the test wants that.
globalThis.setInterval = (action, time, ...rest) => plain(action, time === HOUR && renewsSoon ? 1000 : time, ...rest);

const require = createRequire(import.meta.url);
const { host, path, rule, key, kind } = given;
const hyco = require(kind);
const listenUri = `ws://${host}/$hc/${path}?sb-hc-action=listen`;
const pause = (time) => new Promise((done) => setTimeout(done, time));

function listen(lifetimes) {
  const handler = kind === "hyco-ws"
    ? (socket) => socket.on("message", (data) => socket.send(data))
    : (request, response) => response.end("here");
  const token = () => hyco.createRelayToken(listenUri, rule, key, lifetimes.length > 1 ? lifetimes.shift() : lifetimes[0]);
  const server = hyco.createRelayedServer({ server: listenUri, token }, handler);
  server.on("error", () => {});
  if (server.listen) server.listen();
  return server;
}

async function answers() {
  const sendUri = `ws://${host}/$hc/${path}?sb-hc-action=connect`;
  const headers = { ServiceBusAuthorization: hyco.createRelayToken(sendUri, rule, key, 600) };
  if (kind === "hyco-https") return (await fetch(`http://${host}/${path}`, { headers })).status === 200;
  const client = new hyco(sendUri, null, { headers });
  await once(client, "open");
  client.send("x");
  const found = (await once(client, "message"))[0];
  client.close();
  return found === "x";
}

// Tokens of three seconds, renewed each second: after five seconds it is still the first channel.
const renewing = listen([3]);
await once(renewing, "listening");
const channel = renewing.controlChannel;
await pause(5000);
const renewed = { same: renewing.controlChannel === channel, answers: await answers() };
renewing.close();
await pause(500);

// A token of two seconds that is not renewed: the relay closes the channel, and the package comes with the next token.
renewsSoon = false;
const ending = listen([2, 600]);
await once(ending, "listening");
const closed = once(ending.controlChannel, "close");
const back = once(ending, "listening");
const code = (await closed)[0];
await back;
tell({ renewed, code, answersAgain: await answers() });
ending.close();
setTimeout(() => process.exit(0), 200);
