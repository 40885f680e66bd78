// Sessions by name and next available, order, state, renewal, deferral, and who is refused.

import { connect, failure, given, message, seconds, takeAll, tell } from "./common.mjs";

const client = connect();
const sender = client.createSender(given.queue);
const of = (sessionId, body) => ({ ...message(body), sessionId });
await sender.sendMessages([of("a", "a1"), of("a", "a2"), of("a", "a3")]);
await sender.sendMessages([of("b", "b1")]);

const named = await client.acceptSession(given.queue, "a");
const held = await failure(() => client.acceptSession(given.queue, "a"));
const left = (named.sessionLockedUntilUtc - new Date()) / 1000;

const next = await client.acceptNextSession(given.queue);
const nextId = next.sessionId;

const before = await named.getSessionState();
await named.setSessionState({ step: 1 });
const state = await named.getSessionState();
await named.setSessionState(null);
const cleared = await named.getSessionState();
const renewed = (await named.renewSessionLock()) > new Date();

// Abandoned, then deferred: the first of the session stays the first.
const [first] = await named.receiveMessages(1, { maxWaitTimeInMs: 20000 });
await named.abandonMessage(first);
const [again] = await named.receiveMessages(1, { maxWaitTimeInMs: 20000 });
await named.deferMessage(again);
const peeked = (await named.peekMessages(9)).map((found) => found.body);
const bodies = await takeAll(named, 2);
const [deferred] = await named.receiveDeferredMessages([again.sequenceNumber]);
await named.completeMessage(deferred);
const closing = await seconds(() => named.close());
await next.close();

const other = await client.acceptNextSession(given.queue);
const waiting = client.acceptNextSession(given.queue);
const began = performance.now();
await sender.sendMessages(of("late", "late"));
const late = await waiting;
const waited = (performance.now() - began) / 1000;
const lateBodies = await takeAll(late, 1);
await late.close();
await other.close();

const sessionless = await failure(() => sender.sendMessages(message("x")));
const plain = await failure(() => client.createReceiver(given.queue).receiveMessages(1, { maxWaitTimeInMs: 1000 }));
const notRequired = await failure(() => client.acceptSession(given.plain, "a"));
await client.close();

tell({
  held,
  left,
  nextId,
  before: before ?? null,
  state,
  cleared: cleared ?? null,
  renewed,
  order: [first.body, again.body],
  counts: [first.deliveryCount, again.deliveryCount],
  peeked,
  bodies,
  deferred: deferred.body,
  closing,
  otherId: other.sessionId,
  lateId: late.sessionId,
  waited,
  lateBodies,
  sessionless,
  plain,
  notRequired,
});
