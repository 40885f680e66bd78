// What the programs share: the arguments of the test, a client, and the one line of JSON that the test looks at.

import { ServiceBusClient } from "@azure/service-bus";
import { WebSocket } from "ws";

/** What the test gives: connection, endpoint and websocket for `connect`, and what each program wants. */
export const given = JSON.parse(process.argv[2]);

/** A client. It does not retry unless asked to, so that errors show at once. */
export function connect(connection = given.connection, options = {}) {
  return new ServiceBusClient(connection, {
    retryOptions: { maxRetries: 0 },
    ...(given.endpoint && { customEndpointAddress: given.endpoint }),
    ...(given.websocket && { webSocketOptions: { webSocket: WebSocket } }),
    ...options,
  });
}

/** A message as most programs write it: without an id. The broker gives it one, by which the SDK renews its lock. */
export function message(body) {
  return { body };
}

/** Tell the test. The process has to end by itself then: a close that never ends is a failure. */
export function tell(found) {
  process.stdout.write(`${JSON.stringify(found)}\n`);
}

/** Run something that should fail; tells the code of the error, its text, and the seconds that it took. */
export async function failure(what) {
  const started = performance.now();
  try {
    await what();
  } catch (error) {
    const seconds = (performance.now() - started) / 1000;
    return { code: error.code ?? error.name, text: error.message, retryable: error.retryable ?? null, seconds };
  }
  return { code: "none", text: "", retryable: null, seconds: (performance.now() - started) / 1000 };
}

/** The seconds that something took. */
export async function seconds(what) {
  const started = performance.now();
  await what();
  return (performance.now() - started) / 1000;
}

/** Receive and complete `number` messages; fewer when no more come. */
export async function takeAll(receiver, number) {
  const bodies = [];
  while (bodies.length < number) {
    const messages = await receiver.receiveMessages(number - bodies.length, { maxWaitTimeInMs: 20000 });
    if (messages.length === 0) break;
    for (const found of messages) {
      bodies.push(found.body);
      await receiver.completeMessage(found);
    }
  }
  return bodies;
}
