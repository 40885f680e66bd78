// Contract 8.5: a drain gives what there is and takes the rest of the credit; the link goes on afterwards.

import { once } from "node:events";

import { leave, login, receive, receiver, sendAll } from "./rhea_common.mjs";
import { given, tell } from "./common.mjs";

const connection = await login();
await sendAll(connection, given.queue, [{ body: "one" }, { body: "two" }]);

const link = receiver(connection, given.queue);
await once(link, "receiver_open");
const bodies = [];
const collect = ({ message, delivery }) => {
  bodies.push(message.body);
  delivery.accept();
};
link.on("message", collect);
link.add_credit(5);
link.drain_credit();
await once(link, "receiver_drained");
const atFirst = { bodies: [...bodies], credit: link.credit };

link.add_credit(3);
link.drain_credit();
await once(link, "receiver_drained");
const onEmpty = { bodies: bodies.length, credit: link.credit };

link.drain = false;
link.removeListener("message", collect);
const waiting = receive(link, 1);
await sendAll(connection, given.queue, [{ body: "three" }]);
const [{ message, delivery }] = await waiting;
delivery.accept();
await leave(connection);

tell({ atFirst, onEmpty, later: message.body });
