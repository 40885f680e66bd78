// A plain AMQP client with promises around the few events that the programs wait for.

import { once } from "node:events";
import { setImmediate as turn } from "node:timers/promises";

import rhea from "rhea";

import { given } from "./common.mjs";

/** An open connection with a PLAIN login, in a container of its own. */
export async function login(password = given.password) {
  const container = rhea.create_container();
  const connection = container.connect({
    host: "localhost",
    port: given.port,
    username: given.username,
    password,
    reconnect: false,
  });
  const failed = once(connection, "disconnected").then(([{ error }]) => Promise.reject(error ?? new Error("closed")));
  const refused = once(connection, "connection_error").then(([{ error }]) => Promise.reject(error));
  // One of the three comes first; what happens to the others later is nobody's error.
  failed.catch(() => {});
  refused.catch(() => {});
  await Promise.race([once(connection, "connection_open"), failed, refused]);
  return connection;
}

/** Close and wait for the peer's close. */
export async function leave(connection) {
  const closed = once(connection, "connection_close");
  connection.close();
  await closed;
}

/** Send and wait for all outcomes; tells how many were accepted. */
export async function sendAll(connection, address, messages) {
  const sender = connection.open_sender(address);
  let accepted = 0;
  let next = 0;
  await new Promise((resolve, reject) => {
    sender.on("sendable", () => {
      while (next < messages.length && sender.sendable()) sender.send(messages[next++]);
    });
    sender.on("accepted", () => {
      accepted++;
      if (accepted === messages.length) resolve();
    });
    sender.on("rejected", (context) => reject(context.delivery.remote_state.error));
    sender.on("sender_error", (context) => reject(context.sender.error));
  });
  sender.close();
  return accepted;
}

/** A receiver that takes and settles only what it is told to. */
export function receiver(connection, address, options = {}) {
  return connection.open_receiver({
    source: address,
    credit_window: 0,
    autoaccept: false,
    ...options,
  });
}

/**
 * Settle each delivery in a turn of its own: of the first two of a turn rhea makes one disposition, whatever their
 * outcomes are.
 */
export async function settle(...settlements) {
  for (const settlement of settlements) {
    settlement();
    await turn();
  }
}

/** Ask for `number` messages and wait for them: contexts of the deliveries, in order. */
export async function receive(link, number) {
  const found = [];
  const all = new Promise((resolve) => {
    link.on("message", function collect(context) {
      found.push({ message: context.message, delivery: context.delivery });
      if (found.length === number) {
        link.removeListener("message", collect);
        resolve();
      }
    });
  });
  link.add_credit(number);
  await all;
  return found;
}
