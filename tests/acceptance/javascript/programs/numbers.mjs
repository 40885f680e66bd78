// Check 16: peek, schedule, cancel, and receiving by number.

import Long from "long";

import { connect, failure, given, message, takeAll, tell } from "./common.mjs";

const client = connect();
const sender = client.createSender(given.queue);
const receiver = client.createReceiver(given.queue);
const nothing = await receiver.peekMessages(5);

const due = new Date(Date.now() + 2000);
const [cancelled] = await sender.scheduleMessages(message("cancelled"), due);
const scheduled = await sender.scheduleMessages(["one", "two"].map(message), due);
const waiting = await receiver.peekMessages(10, { fromSequenceNumber: Long.fromNumber(1) });
await sender.cancelScheduledMessages(cancelled);
const cancelledTwice = await failure(() => sender.cancelScheduledMessages(cancelled));
const early = await receiver.receiveMessages(1, { maxWaitTimeInMs: 300 });

const [first] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 20000 });
const late = (Date.now() - due) / 1000;
await receiver.completeMessage(first);
const bodies = [first.body, ...(await takeAll(receiver, 1))];
const unknown = await failure(() => receiver.receiveDeferredMessages(Long.fromNumber(123_456)));
const rest = await receiver.peekMessages(10);
await client.close();

tell({
  nothing: nothing.length,
  waiting: waiting.map((found) => [found.body, found.state]),
  distinct: new Set([cancelled, ...scheduled].map(String)).size,
  cancelledTwice: cancelledTwice.code,
  early: early.length,
  late,
  bodies,
  unknown,
  rest: rest.length,
});
