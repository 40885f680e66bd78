// A namespace past its rate: the code that the SDK gives, and that it waits and gets through when it may retry.

import { connect, failure, given, message, seconds, takeAll, tell } from "./common.mjs";

let accepted = 0;

async function flood(client, number) {
  const sender = client.createSender(given.queue);
  for (let index = 0; index < number; index++, accepted++) await sender.sendMessages(message(index));
  await sender.close();
}

const hasty = connect();
const refused = await failure(() => flood(hasty, 60));
await hasty.close();

const patient = connect(given.connection, { retryOptions: { maxRetries: 5, retryDelayInMs: 1000 } });
const took = await seconds(() => flood(patient, 10));
const bodies = await takeAll(patient.createReceiver(given.queue), accepted);
await patient.close();

tell({ refused, took, last: bodies.slice(-10) });
