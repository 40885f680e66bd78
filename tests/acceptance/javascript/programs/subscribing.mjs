// Receiving by a handler and by an iterator, from a queue and from a session.

import { connect, given, message, tell } from "./common.mjs";

const NAMES = ["one", "two", "three"];
const client = connect();

/** The bodies that a handler gets, each completed by it; ends when all are there. */
function handled(receiver) {
  const bodies = [];
  return new Promise((resolve, reject) => {
    const processMessage = async (found) => {
      bodies.push(found.body);
      await receiver.completeMessage(found);
      if (bodies.length === NAMES.length) resolve(bodies);
    };
    const processError = async ({ error }) => reject(error);
    receiver.subscribe({ processMessage, processError }, { autoCompleteMessages: false, maxConcurrentCalls: 1 });
  });
}

/** The bodies that an iterator gets, each completed. */
async function iterated(receiver) {
  const bodies = [];
  for await (const found of receiver.getMessageIterator()) {
    bodies.push(found.body);
    await receiver.completeMessage(found);
    if (bodies.length === NAMES.length) return bodies;
  }
  return bodies;
}

async function both(queue, sessionId, open) {
  const found = [];
  for (const receive of [handled, iterated]) {
    await client.createSender(queue).sendMessages(NAMES.map((name) => ({ ...message(name), sessionId })));
    const receiver = await open();
    found.push(await receive(receiver));
    await receiver.close();
  }
  const last = await open();
  // Peeking shows what is locked as well.
  found.push((await last.peekMessages(1)).map((left) => left.body));
  await last.close();
  return found;
}

const plain = await both(given.queue, undefined, async () => client.createReceiver(given.queue));
const session = await both(given.sessions, "s", () => client.acceptSession(given.sessions, "s"));
await client.close();

tell({ plain, session });
