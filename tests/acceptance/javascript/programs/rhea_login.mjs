// PLAIN: the rule's name and key let in, another key does not.

import { leave, login, receive, receiver, sendAll } from "./rhea_common.mjs";
import { failure, given, tell } from "./common.mjs";

const connection = await login();
const accepted = await sendAll(connection, given.queue, [{ body: "in", message_id: 7 }]);
const [{ message, delivery }] = await receive(receiver(connection, given.queue), 1);
delivery.accept();
await leave(connection);

const refused = await failure(() => login("another key"));

tell({ accepted, body: message.body, id: message.message_id, tag: delivery.tag.length, refused });
