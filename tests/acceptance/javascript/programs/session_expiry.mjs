// Contract 11.5: a session whose lock runs out is lost to its holder, and all of it comes again to the next.

import { connect, failure, given, message, tell } from "./common.mjs";

const client = connect();
const sender = client.createSender(given.queue);
await sender.sendMessages([1, 2].map((body) => ({ ...message(body), sessionId: "s" })));

const slow = await client.acceptSession(given.queue, "s", { maxAutoLockRenewalDurationInMs: 0 });
const [held] = await slow.receiveMessages(1, { maxWaitTimeInMs: 20000 });
await new Promise((resolve) => setTimeout(resolve, 5600));
const settled = await failure(() => slow.completeMessage(held));
const state = await failure(() => slow.setSessionState("late"));

const heir = await client.acceptSession(given.queue, "s");
const found = await heir.receiveMessages(2, { maxWaitTimeInMs: 20000 });
const bodies = found.map((each) => [each.body, each.deliveryCount]);
// Settled, then closed at once: the settlement counts.
await heir.completeMessage(found[0]);
await heir.close();
const last = await client.acceptNextSession(given.queue);
const rest = await last.receiveMessages(2, { maxWaitTimeInMs: 1000 });
await client.close();

tell({ settled, state, bodies, rest: rest.map((each) => each.body) });
