// Check 4: one message and a batch of 100 arrive as 101 messages.

import { connect, given, message, takeAll, tell } from "./common.mjs";

const client = connect();
const sender = client.createSender(given.queue);
await sender.sendMessages(message("alone"));
const batch = await sender.createMessageBatch();
for (let index = 0; index < 100; index++) batch.tryAddMessage(message(index));
await sender.sendMessages(batch);
const bodies = await takeAll(client.createReceiver(given.queue), 101);
await client.close();

tell({ bodies });
