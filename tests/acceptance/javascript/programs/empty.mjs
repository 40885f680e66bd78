// Check 7: receiving on an empty queue ends at its time, three times on the same link.

import { connect, given, seconds, tell } from "./common.mjs";

const client = connect();
const receiver = client.createReceiver(given.queue);
const took = [];
const counts = [];
for (let round = 0; round < 3; round++) {
  took.push(
    await seconds(async () => counts.push((await receiver.receiveMessages(10, { maxWaitTimeInMs: 500 })).length)),
  );
}
await client.close();

tell({ took, counts });
