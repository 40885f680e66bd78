// A receiver with rcv-settle-mode second waits for the broker's outcome of each settlement.

import { once } from "node:events";

import { leave, login, receive, receiver, sendAll, settle } from "./rhea_common.mjs";
import { given, tell } from "./common.mjs";

const connection = await login();
const names = ["accepted", "modified", "rejected", "released"];
await sendAll(connection, given.queue, names.map((name) => ({ body: name })));

const link = receiver(connection, given.queue, { rcv_settle_mode: 1 });
const deliveries = (await receive(link, 4)).map(({ delivery }) => delivery);
const answers = [];
const all = new Promise((resolve) => {
  link.on("settled", ({ delivery }) => {
    answers.push([deliveries.indexOf(delivery), delivery.remote_state?.constructor.composite_type ?? null]);
    if (answers.length === 4) resolve();
  });
});
await settle(
  () => deliveries[0].accept(),
  () => deliveries[1].modified({ delivery_failed: true }),
  () => deliveries[2].reject(),
  () => deliveries[3].release(),
);
await all;
await leave(connection);

tell({ answers: answers.sort().map(([, outcome]) => outcome) });
