// Check 13: receive-and-delete leaves nothing behind.

import { connect, given, message, tell } from "./common.mjs";

const client = connect();
await client.createSender(given.queue).sendMessages(Array.from({ length: 6 }, (_, index) => message(index)));
const receiver = client.createReceiver(given.queue, { receiveMode: "receiveAndDelete" });
const bodies = [];
while (bodies.length < 6) {
  const messages = await receiver.receiveMessages(6 - bodies.length, { maxWaitTimeInMs: 20000 });
  if (messages.length === 0) break;
  bodies.push(...messages.map(({ body }) => body));
}
const rest = await receiver.peekMessages(1);
await client.close();

tell({ bodies, rest: rest.length });
