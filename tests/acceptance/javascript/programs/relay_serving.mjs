// One of the packages as listener for a sender of ours, until that asks for the end.

import { createRequire } from "node:module";
import { once } from "node:events";
import { given, tell } from "./common.mjs";

const { host, path, rule, key, kind } = given;
const hyco = createRequire(import.meta.url)(kind);
const listenUri = `ws://${host}/$hc/${path}?sb-hc-action=listen`;
let stop;
const stopped = new Promise((done) => (stop = done));

const overSockets = (socket) =>
  socket.on("message", (data) => (data === "stop" ? (socket.close(4001, "enough"), stop()) : socket.send(data)));
const overHttp = (request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(Buffer.from(part)));
  request.on("end", () => {
    response.setHeader("Set-Cookie", "a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT");
    response.end(Buffer.concat(parts));
    if (request.url.includes("stop")) stop();
  });
};
const server = hyco.createRelayedServer(
  { server: listenUri, token: () => hyco.createRelayToken(listenUri, rule, key) },
  kind === "hyco-ws" ? overSockets : overHttp,
);
server.on("error", () => {});
const listening = once(server, "listening");
if (server.listen) server.listen();
await listening;
await stopped;
// What was said last is on its way.
await new Promise((done) => setTimeout(done, 500));
tell({ stopped: true });
process.exit(0);
