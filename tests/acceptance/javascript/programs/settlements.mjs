// Check 10: each of the four settlements is confirmed and has its effect.

import { connect, given, message, seconds, tell } from "./common.mjs";

const client = connect();
const names = ["complete", "defer", "dead", "abandon"];
await client.createSender(given.queue).sendMessages(names.map(message));

const receiver = client.createReceiver(given.queue);
const [complete, defer, dead, abandon] = await receiver.receiveMessages(4, { maxWaitTimeInMs: 20000 });
const reason = { deadLetterReason: "broken", deadLetterErrorDescription: "beyond repair", shelf: 7 };
const took = {
  complete: await seconds(() => receiver.completeMessage(complete)),
  defer: await seconds(() => receiver.deferMessage(defer, { colour: "blue" })),
  dead: await seconds(() => receiver.deadLetterMessage(dead, reason)),
  abandon: await seconds(() => receiver.abandonMessage(abandon, { tries: "one" })),
};

const left = await receiver.receiveMessages(4, { maxWaitTimeInMs: 500 });
const again = left.map((m) => [m.body, m.deliveryCount, m.applicationProperties.tries]);
for (const found of left) await receiver.completeMessage(found);
const [deferred] = await receiver.receiveDeferredMessages([defer.sequenceNumber]);
const back = [deferred.body, deferred.applicationProperties.colour];
await receiver.completeMessage(deferred);
const rest = await receiver.peekMessages(10);

const letters = client.createReceiver(given.queue, { subQueueType: "deadLetter" });
const [letter] = await letters.receiveMessages(1, { maxWaitTimeInMs: 20000 });
const { DeadLetterReason, DeadLetterErrorDescription, shelf } = letter.applicationProperties;
await letters.completeMessage(letter);
await client.close();

tell({
  took,
  again,
  back,
  rest: rest.length,
  letter: [letter.body, letter.deadLetterReason, letter.deadLetterErrorDescription],
  properties: [DeadLetterReason, DeadLetterErrorDescription, shelf],
});
