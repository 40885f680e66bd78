// Check 12: a client gives back at its close what it prefetched and never looked at; it is nobody's delivery.

import { once } from "node:events";

import { leave, login, receive, receiver, sendAll, settle } from "./rhea_common.mjs";
import { given, tell } from "./common.mjs";

const connection = await login();
await sendAll(connection, given.queue, Array.from({ length: 10 }, (_, index) => ({ body: index })));

const closing = receiver(connection, given.queue);
const messages = await receive(closing, 10);
await settle(
  () => messages.slice(0, 3).forEach(({ delivery }) => delivery.accept()),
  () => messages.slice(3).forEach(({ delivery }) => delivery.release()),
);
closing.close();
await once(closing, "receiver_close");

const started = performance.now();
const rest = await receive(receiver(connection, given.queue), 7);
const took = (performance.now() - started) / 1000;
rest.forEach(({ delivery }) => delivery.accept());
await leave(connection);

tell({ rest: rest.map(({ message }) => [message.body, message.delivery_count]), took });
