// A session that settles nothing takes 2,048 transfers and not one more, until it opens its window again.

import { setTimeout as sleep } from "node:timers/promises";

import { leave, login, receiver, sendAll } from "./rhea_common.mjs";
import { given, tell } from "./common.mjs";

const WINDOW = 2048;
const NUMBER = 2100;

const connection = await login();
await sendAll(connection, given.queue, Array.from({ length: NUMBER }, (_, index) => ({ body: index })));

const link = receiver(connection, given.queue);
const deliveries = [];
let enough = () => {};
link.on("message", ({ delivery }) => {
  deliveries.push(delivery);
  enough();
});
const reach = (number) =>
  new Promise((resolve) => {
    enough = () => deliveries.length >= number && resolve();
    enough();
  });
link.add_credit(NUMBER);
await reach(WINDOW);
await sleep(200);
const blocked = deliveries.length;
for (const delivery of deliveries) delivery.accept();
await reach(NUMBER);
for (const delivery of deliveries.slice(blocked)) delivery.accept();
await leave(connection);

tell({ blocked, all: deliveries.length });
