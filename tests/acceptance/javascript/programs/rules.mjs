// The rule manager adds, lists and removes rules; they hold for the next message.

import { connect, failure, given, message, tell } from "./common.mjs";

const client = connect();
const manager = client.createRuleManager(given.topic, "changing");
const sender = client.createSender(given.topic);

async function names() {
  const found = [];
  for await (const rule of manager.listRules()) found.push(rule.name);
  return found;
}

const before = await names();
await manager.deleteRule("$Default");
await sender.sendMessages({ ...message("nobody"), applicationProperties: { n: 5 } });
await manager.createRule("large", { sqlExpression: "n > 3" }, { sqlExpression: "SET size = 'L'" });
await manager.createRule("exact", { subject: "s", applicationProperties: { n: 1 } });
const rules = [];
for await (const rule of manager.listRules()) rules.push(rule);
await sender.sendMessages({ ...message("five"), applicationProperties: { n: 5 } });
await sender.sendMessages({ ...message("one"), subject: "s", applicationProperties: { n: 1 } });
await sender.sendMessages({ ...message("two"), subject: "s", applicationProperties: { n: 2 } });
const receiver = client.createReceiver(given.topic, "changing", { receiveMode: "receiveAndDelete" });
const found = [];
while (found.length < 2) found.push(...(await receiver.receiveMessages(2, { maxWaitTimeInMs: 20000 })));
const wrong = await failure(() => manager.createRule("wrong", { sqlExpression: "n >" }));
const twice = await failure(() => manager.createRule("large", { sqlExpression: "n > 4" }));
const missing = await failure(() => manager.deleteRule("missing"));
const after = await names();
await client.close();

tell({
  before,
  rules,
  bodies: found.map((one) => one.body),
  properties: found.map((one) => one.applicationProperties),
  wrong,
  twice,
  missing,
  after,
});
