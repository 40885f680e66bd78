// Contract 9.4: what came on a link that is closed is settled by management, and a second time it is lock lost.

import { connect, failure, given, message, tell } from "./common.mjs";

const client = connect();
await client.createSender(given.queue).sendMessages(message("m"));
const closing = client.createReceiver(given.queue);
const [found] = await closing.receiveMessages(1, { maxWaitTimeInMs: 20000 });
await closing.close();
// A closed receiver settles nothing; another one of the entity does it by management.
const other = client.createReceiver(given.queue);
const first = await failure(() => other.completeMessage(found));
const second = await failure(() => other.completeMessage(found));
const rest = await other.peekMessages(1);
await client.close();

tell({ first: first.code, second: second.code, rest: rest.length });
