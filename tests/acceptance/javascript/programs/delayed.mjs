// The back-off of a queue, and an abandon that says itself when the message is to come back.

import { connect, given, message, seconds, tell } from "./common.mjs";

const client = connect();
await client.createSender(given.queue).sendMessages(message("m"));
const receiver = client.createReceiver(given.queue);

/** Abandon the next message; the seconds until it is there again, and its properties then. */
async function away(found, properties) {
  let again;
  const took = await seconds(async () => {
    await receiver.abandonMessage(found, properties);
    [again] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 20000 });
  });
  return { again, took, properties: again.applicationProperties ?? {} };
}

const [first] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 20000 });
const byPolicy = await away(first);
const byWord = await away(byPolicy.again, { "duobus:redelivery-delay": 1500, why: "busy" });
await receiver.completeMessage(byWord.again);
await client.close();

tell({ byPolicy: byPolicy.took, byWord: byWord.took, properties: byWord.properties });
