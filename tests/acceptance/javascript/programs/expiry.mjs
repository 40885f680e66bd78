// Checks 9 and 11: a renewal moves the end of a lock; settling after it is lock lost, on the link and by management.

import { setTimeout as sleep } from "node:timers/promises";

import { connect, failure, given, message, takeAll, tell } from "./common.mjs";

const client = connect();
await client.createSender(given.queue).sendMessages(["linked", "managed"].map(message));
const receiver = client.createReceiver(given.queue, { maxAutoLockRenewalDurationInMs: 0 });
const closing = client.createReceiver(given.queue, { maxAutoLockRenewalDurationInMs: 0 });
const [linked] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 20000 });
const [managed] = await closing.receiveMessages(1, { maxWaitTimeInMs: 20000 });
// What came on a link that is closed is settled by management, by any receiver of the entity.
await closing.close();

await sleep(100);
const before = linked.lockedUntilUtc;
const after = await receiver.renewMessageLock(linked);

await sleep(after - Date.now() + 300);
const onLink = await failure(() => receiver.completeMessage(linked));
const byManagement = await failure(() => receiver.completeMessage(managed));
const renewal = await failure(() => receiver.renewMessageLock(linked));
const again = await takeAll(receiver, 2);
await client.close();

tell({ moved: after - before, onLink, byManagement, renewal, again });
