// Check 19: the broker is started again under load; the client goes on by itself, and what was accepted arrives.

import { setTimeout as sleep } from "node:timers/promises";

import { connect, failure, given, message, tell } from "./common.mjs";

const client = connect(given.connection, {
  retryOptions: { maxRetries: 50, retryDelayInMs: 100, maxRetryDelayInMs: 200, timeoutInMs: 2000 },
});
const seen = new Set();
const accepted = [];
const interruptions = [];
let before = 0;

const receiver = client.createReceiver(given.queue);
receiver.subscribe({
  processMessage: async ({ body }) => void seen.add(body),
  processError: async ({ error }) => {
    interruptions.push(error.code ?? error.name);
    before = accepted.length;
  },
});

const sender = client.createSender(given.queue);
// Until the broker's absence was noticed and it is there again; the limit of a program ends what never gets there.
for (let index = 0; interruptions.length === 0 || accepted.length - before <= 20; index++) {
  // A refused connection ends the SDK's retries of a send; the receiver's go on.
  const { code } = await failure(() => sender.sendMessages(message(index)));
  if (code === "none") {
    accepted.push(index);
  } else {
    interruptions.push(code);
    before = accepted.length;
    await sleep(50);
  }
  await sleep(2);
}
while (!accepted.every((index) => seen.has(index))) await sleep(20);
await client.close();

tell({ before, afterwards: accepted.length - before, interruptions });
