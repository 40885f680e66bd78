// Contract 17: released gives back uncounted, modified counted, modified elsewhere defers, rejected dead-letters.

import { once } from "node:events";

import { leave, login, receive, receiver, sendAll, settle } from "./rhea_common.mjs";
import { given, tell } from "./common.mjs";

const connection = await login();
const names = ["released", "modified", "elsewhere", "rejected"];
const messages = names.map((name) => ({ body: name, message_id: name }));
await sendAll(connection, given.queue, messages);

const link = receiver(connection, given.queue);
const [released, modified, elsewhere, rejected] = await receive(link, 4);
await settle(
  () => released.delivery.release(),
  () => modified.delivery.modified({ delivery_failed: true, message_annotations: { note: "tried" } }),
  () => elsewhere.delivery.modified({ undeliverable_here: true }),
  () => rejected.delivery.reject({ condition: "test:broken", description: "beyond repair" }),
);

const again = await receive(link, 2);
for (const { delivery } of again) delivery.accept();

const letters = receiver(connection, `${given.queue}/$DeadLetterQueue`);
const [letter] = await receive(letters, 1);
letter.delivery.accept();

// Nothing else is left to deliver: a drain ends with no message.
link.add_credit(10);
link.drain_credit();
await once(link, "receiver_drained");
await leave(connection);

tell({
  again: again.map(({ message }) => [message.body, message.delivery_count, message.application_properties?.note ?? null]),
  letter: letter.message.body,
  properties: letter.message.application_properties,
  credit: link.credit,
});
