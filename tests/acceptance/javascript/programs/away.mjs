// A queue whose messaging store is away: what the error says, and that a client that may retry gets through in place.

import { connect, failure, given, message, seconds, takeAll, tell } from "./common.mjs";

const hasty = connect();
const refused = await failure(() => hasty.createSender(given.queue).sendMessages(message("refused")));
await hasty.close();

const patient = connect(given.connection, { retryOptions: { maxRetries: 20, retryDelayInMs: 250 } });
const took = await seconds(() => patient.createSender(given.queue).sendMessages(message("waits")));
const bodies = await takeAll(patient.createReceiver(given.queue), 1);
await patient.close();

tell({ refused, took, bodies });
