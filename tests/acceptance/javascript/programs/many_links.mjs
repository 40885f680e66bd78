// Check 17: five senders and five receivers on one connection, 10,000 messages.

import { connect, given, message, tell } from "./common.mjs";

const PART = given.number / 5;
const seen = new Map();
const errors = [];

const client = connect();
const receivers = Array.from({ length: 5 }, () => client.createReceiver(given.queue));
const all = new Promise((resolve) => {
  const processMessage = async ({ body }) => {
    seen.set(body, (seen.get(body) ?? 0) + 1);
    if (seen.size === given.number) resolve();
  };
  const processError = async ({ error }) => {
    errors.push(`${error.code}: ${error.message}`);
    resolve();
  };
  for (const receiver of receivers) {
    receiver.subscribe({ processMessage, processError }, { maxConcurrentCalls: 200 });
  }
});

async function sendPart(index) {
  const sender = client.createSender(given.queue);
  for (let first = 0; first < PART; first += 100) {
    const messages = Array.from({ length: 100 }, (_, offset) => message(index * PART + first + offset));
    await sender.sendMessages(messages);
  }
}
await Promise.all([0, 1, 2, 3, 4].map(sendPart));
await all;
// Waits for the settlements under way.
await Promise.all(receivers.map((receiver) => receiver.close()));
await client.close();

tell({ distinct: seen.size, twice: [...seen.values()].filter((times) => times > 1).length, errors });
