// Check 12, second part: another client gets what the first one left.

import { connect, given, seconds, tell } from "./common.mjs";

const client = connect();
const receiver = client.createReceiver(given.queue);
const rest = [];
const took = await seconds(async () => {
  while (rest.length < 7) {
    const found = await receiver.receiveMessages(7, { maxWaitTimeInMs: 20000 });
    if (found.length === 0) break;
    for (const one of found) {
      rest.push([one.body, one.deliveryCount]);
      await receiver.completeMessage(one);
    }
  }
});
await client.close();

tell({ rest, took });
