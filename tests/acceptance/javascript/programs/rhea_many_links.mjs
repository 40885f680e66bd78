// Check 17: five senders and five receivers in one session; ids without a gap, and the window honoured.

import { leave, login } from "./rhea_common.mjs";
import { given, tell } from "./common.mjs";

const PART = given.number / 5;

const connection = await login();
const session = connection.create_session();

// What the session saw, beside what rhea itself checks: ids, and transfers beyond the window last announced.
const window = { announced: session.incoming.window, used: 0, exceeded: 0, smallest: session.incoming.window };
const ids = { next: undefined, gaps: 0 };
const onTransfer = session.incoming.on_transfer;
session.incoming.on_transfer = function watched(frame, link) {
  const { delivery_id: id } = frame.performative;
  if (ids.next !== undefined && id !== ids.next) ids.gaps++;
  ids.next = id + 1;
  if (this.next_transfer_id >= this.max_transfer_id) window.exceeded++;
  onTransfer.call(this, frame, link);
  window.smallest = Math.min(window.smallest, this.max_transfer_id - this.next_transfer_id);
};
session.open();

const seen = new Set();
let accepted = 0;
await new Promise((resolve, reject) => {
  const check = () => {
    if (seen.size === given.number && accepted === given.number) resolve();
  };
  connection.on("connection_error", () => reject(connection.error));
  connection.on("session_error", () => reject(session.error));
  connection.on("disconnected", () => reject(new Error("disconnected")));
  for (let index = 0; index < 5; index++) {
    const link = session.open_receiver({ source: given.queue, credit_window: 1000 });
    link.on("message", ({ message }) => {
      seen.add(message.body);
      check();
    });
    const sender = session.open_sender(given.queue);
    let next = 0;
    sender.on("sendable", () => {
      while (next < PART && sender.sendable()) sender.send({ body: index * PART + next++ });
    });
    sender.on("accepted", () => {
      accepted++;
      check();
    });
  }
});
connection.removeAllListeners("disconnected");
await leave(connection);

tell({ distinct: seen.size, accepted, gaps: ids.gaps, window });
