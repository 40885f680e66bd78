// Contract 8.5: short receives that drain while messages arrive; each message comes once, none is lost or repeated.

import { setTimeout as sleep } from "node:timers/promises";

import { connect, given, message, tell } from "./common.mjs";

const client = connect();
const sender = client.createSender(given.queue);
const receiver = client.createReceiver(given.queue, { receiveMode: given.mode });

async function send() {
  for (let index = 0; index < given.number; index++) {
    await sender.sendMessages(message(index));
    await sleep(index % 4);
  }
}

const sending = send();
const bodies = [];
let empty = 0;
let counted = 0;
let quiet = 0;
while (quiet < 10 && bodies.length < 2 * given.number) {
  const messages = await receiver.receiveMessages(5, { maxWaitTimeInMs: 1 + (bodies.length % 7) });
  quiet = messages.length === 0 && bodies.length >= given.number ? quiet + 1 : 0;
  empty += messages.length === 0;
  for (const found of messages) {
    bodies.push(found.body);
    counted += found.deliveryCount > 0;
    if (given.mode === "peekLock") await receiver.completeMessage(found);
  }
}
await sending;
const rest = await receiver.peekMessages(10);
await client.close();

tell({ received: bodies.length, distinct: new Set(bodies).size, counted, empty, rest: rest.length });
