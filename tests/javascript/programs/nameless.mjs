// Messages without an id. The SDK keeps its renewals of locks by message id and fails at the first settlement when
// there is none, so renewal is off here; everything else has to work without one.

import { connect, given, takeAll, tell } from "./common.mjs";

const client = connect();
await client.createSender(given.queue).sendMessages([{ body: "one" }, { body: "two" }]);
const receiver = client.createReceiver(given.queue, { maxAutoLockRenewalDurationInMs: 0 });
const bodies = await takeAll(receiver, 2);
await client.close();

tell({ bodies });
