// What is published to a topic comes from the subscriptions whose rules take it.

import { connect, given, message, takeAll, tell } from "./common.mjs";

const client = connect();
const sender = client.createSender(given.topic);
for (const colour of ["red", "blue", "red"]) {
  await sender.sendMessages({ ...message(colour), applicationProperties: { colour } });
}
const all = await takeAll(client.createReceiver(given.topic, "all"), 3);
const red = await takeAll(client.createReceiver(given.topic, "red"), 2);
await client.close();

tell({ all, red });
