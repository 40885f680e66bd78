// Messages without an id. The SDK keeps its renewals of locks, which are on by default, by message id, and would fail at
// the first settlement of a message that had none.

import { connect, given, tell } from "./common.mjs";

const client = connect();
await client.createSender(given.queue).sendMessages([{ body: "one" }, { body: "two" }]);
const receiver = client.createReceiver(given.queue);
const peeked = (await receiver.peekMessages(2)).map((found) => found.messageId);
const received = [];
for (const times of [1, 2]) {
  const messages = await receiver.receiveMessages(2, { maxWaitTimeInMs: 20000 });
  received.push(messages.map((found) => found.messageId));
  for (const found of messages) {
    await (times === 1 ? receiver.abandonMessage(found) : receiver.completeMessage(found));
  }
}
const left = await receiver.peekMessages(2);
await client.close();

tell({ peeked, received, left: left.length });
