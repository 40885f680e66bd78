// hyco-https as listener, Node's own client as sender: small and large bodies, 204 and HEAD, errors, reconnect.

import { createRequire } from "node:module";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { given, tell } from "./common.mjs";

const hyco = createRequire(import.meta.url)("hyco-https");
const { host, path, rule, key } = given;
const listenUri = `ws://${host}/$hc/${path}?sb-hc-action=listen`;
const url = `http://${host}/${path}`;
const headers = { ServiceBusAuthorization: hyco.createRelayToken(listenUri, rule, key) };
const sum = (data) => createHash("sha256").update(data).digest("hex");

const server = hyco.createRelayedServer(
  { server: listenUri, token: () => hyco.createRelayToken(listenUri, rule, key) },
  (request, response) => {
    const parts = [];
    request.on("data", (part) => parts.push(Buffer.from(part)));
    request.on("end", () => {
      const body = Buffer.concat(parts);
      response.setHeader("X-Method", request.method);
      response.setHeader("X-Target", request.url);
      if (request.url.includes("nothing")) response.statusCode = 204;
      if (request.url.includes("error")) response.statusCode = 503;
      if (request.url.includes("large")) response.end(Buffer.alloc(1_000_000, "abc"));
      else response.end(body);
    });
  },
);
server.on("error", () => {});
const listening = once(server, "listening");
server.listen();
await listening;

async function asked(method, target, body) {
  const options = { method, headers, body, ...(body instanceof ReadableStream && { duplex: "half" }) };
  const answer = await fetch(`${url}${target}`, options);
  const data = Buffer.from(await answer.arrayBuffer());
  return { status: answer.status, via: answer.headers.get("via"), target: answer.headers.get("x-target"), data };
}

const small = await asked("POST", "/more?a=1", "question");
const nothing = await asked("GET", "/nothing");
const head = await asked("HEAD", "");
const failed = await asked("GET", "/error");
const data = Buffer.alloc(300_000, "0123456789");
const large = await asked("PUT", "", data);
const chunked = await asked("PUT", "", new Blob([data]).stream());
const answered = await asked("GET", "/large");

const back = once(server, "listening");
server.controlChannel.close();
await back;
const later = await asked("POST", "", "later");

const told = ({ status, via, target, data }) => ({ status, via, target, size: data.length, sum: sum(data) });
const plain = ({ data, ...rest }) => ({ ...rest, text: data.toString() });
server.close();
tell({
  small: plain(small), nothing: plain(nothing), head: plain(head), failed: plain(failed), later: plain(later),
  large: told(large), chunked: told(chunked), answered: told(answered), sum: sum(data),
});
setTimeout(() => process.exit(0), 200);
