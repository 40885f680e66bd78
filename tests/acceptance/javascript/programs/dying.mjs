// Check 12, first part: a client that has ten messages, completes three, and is gone without a word.

import { connect, given, message, tell } from "./common.mjs";

const client = connect();
await client.createSender(given.queue).sendMessages(Array.from({ length: 10 }, (_, index) => message(index)));
const receiver = client.createReceiver(given.queue);
const messages = [];
while (messages.length < 10) messages.push(...(await receiver.receiveMessages(10, { maxWaitTimeInMs: 20000 })));
for (const done of messages.slice(0, 3)) await receiver.completeMessage(done);
tell({ had: messages.length });
process.exit(0);
