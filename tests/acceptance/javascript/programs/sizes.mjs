// Check 5: the announced limit fills a batch, one byte more than it is refused, and a megabyte arrives as it was.

import { createHash, randomBytes } from "node:crypto";

import { connect, failure, given, message, takeAll, tell } from "./common.mjs";

const hash = (bytes) => createHash("sha256").update(bytes).digest("hex");

const client = connect();
const sender = client.createSender(given.queue);
const batch = await sender.createMessageBatch();
let added = 0;
while (batch.tryAddMessage(message(Buffer.alloc(10_000)))) added++;
await sender.sendMessages(batch);
const tooLarge = await failure(() => sender.sendMessages(message(Buffer.alloc(batch.maxSizeInBytes + 1))));
const arrived = await takeAll(client.createReceiver(given.queue), added);

const megabyte = randomBytes(1 << 20);
await client.createSender(given.large).sendMessages(message(megabyte));
const [back] = await takeAll(client.createReceiver(given.large), 1);
await client.close();

const same = hash(megabyte) === hash(back);
tell({ limit: batch.maxSizeInBytes, added, arrived: arrived.length, tooLarge, same });
