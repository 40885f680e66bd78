// Contract 6.3 and 17: what plain clients ask for and do not get is a detach with an error that rhea can read.

import { once } from "node:events";

import { leave, login } from "./rhea_common.mjs";
import { given, tell } from "./common.mjs";

const connection = await login();

async function refusal(options) {
  const link = connection.open_receiver({ ...options, credit_window: 0 });
  await once(link, "receiver_error");
  return link.error.condition;
}

const missing = await refusal({ source: "missing" });
const dynamic = await refusal({ source: { dynamic: true } });
const browsing = await refusal({ source: { address: given.queue, distribution_mode: "copy" } });

const sender = connection.open_sender({ target: { address: null, capabilities: ["ANONYMOUS-RELAY"] } });
await once(sender, "sender_error");
const relay = sender.error.condition;
await leave(connection);

tell({ missing, dynamic, browsing, relay });
