// Check 8: 25 messages come as 10, 10 and 5, in their order.

import { connect, given, message, tell } from "./common.mjs";

const client = connect();
await client.createSender(given.queue).sendMessages(Array.from({ length: 25 }, (_, index) => message(index)));
const receiver = client.createReceiver(given.queue);
const sizes = [];
const bodies = [];
for (let round = 0; round < 3; round++) {
  const messages = await receiver.receiveMessages(10, { maxWaitTimeInMs: 1000 });
  sizes.push(messages.length);
  for (const found of messages) {
    bodies.push(found.body);
    await receiver.completeMessage(found);
  }
}
await client.close();

tell({ sizes, bodies });
