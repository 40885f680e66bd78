// Check 6: a missing entity is told at once, though the client may retry; a missing right as well.
// The SDK retries every lack of rights by design (keys may have been rotated), so it may not here.

import { connect, failure, given, message, tell } from "./common.mjs";

const client = connect(given.connection, { retryOptions: { maxRetries: 3 } });
const missingSender = await failure(() => client.createSender("missing").sendMessages(message("m")));
const missingReceiver = await failure(() => client.createReceiver("missing").receiveMessages(1));
await client.close();

const listener = connect(given.listenOnly);
const noSend = await failure(() => listener.createSender(given.queue).sendMessages(message("m")));
await listener.close();

const speaker = connect(given.sendOnly);
const noListen = await failure(() => speaker.createReceiver(given.queue).receiveMessages(1));
await speaker.close();

tell({ missingSender, missingReceiver, noSend, noListen });
