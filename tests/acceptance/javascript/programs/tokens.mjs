// Check 2: a token of the right key is taken, one of a wrong key is an error that tells so.

import { connect, failure, given, message, takeAll, tell } from "./common.mjs";

const client = connect();
await client.createSender(given.queue).sendMessages(message("in"));
const bodies = await takeAll(client.createReceiver(given.queue), 1);
await client.close();

const stranger = connect(given.wrong);
const refused = await failure(() => stranger.createSender(given.queue).sendMessages(message("out")));
await stranger.close();

tell({ bodies, refused });
