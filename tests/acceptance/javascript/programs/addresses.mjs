// Check 3: every form of an address reaches the same queue.

import { connect, given, message, takeAll, tell } from "./common.mjs";

const client = connect();
for (const form of given.forms) {
  const sender = client.createSender(form);
  await sender.sendMessages(message(form));
  await sender.close();
}
const bodies = await takeAll(client.createReceiver(given.queue), given.forms.length);
await client.close();

tell({ bodies });
