// Topics, subscriptions and rules with the administration client, unmodified, over TLS.

import { ServiceBusAdministrationClient } from "@azure/service-bus";
import { failure, given, tell } from "./common.mjs";

const client = new ServiceBusAdministrationClient(given.address, { retryOptions: { maxRetries: 0 } });
const plain = ({ _response, ...rest }) => rest;
const { topic } = given;

const createdTopic = plain(await client.createTopic(topic, given.topicProperties));
await client.updateTopic(await client.getTopic(topic));
const readTopic = plain(await client.getTopic(topic));
const created = plain(await client.createSubscription(topic, "One", given.properties));
await client.updateSubscription(await client.getSubscription(topic, "One"));
const read = plain(await client.getSubscription(topic, "one"));
const withRule = await client.createSubscription(topic, "ruled", {
  defaultRuleOptions: { name: "mine", filter: { sqlExpression: "a = 1" } },
});
const rules = [];
await client.createRule(topic, "One", "sql", { sqlExpression: "a = @x", sqlParameters: { "@x": 5, "@y": "t", "@z": true } },
  { sqlExpression: "SET b = 2" });
await client.createRule(topic, "One", "correlation", { correlationId: "c", subject: "s", applicationProperties: { p: 1.5, q: "x" } });
for await (const rule of client.listRules(topic, "One")) rules.push(plain(rule));
const got = plain(await client.getRule(topic, "One", "$Default"));
const changed = plain(await client.updateRule(topic, "One", { ...(await client.getRule(topic, "One", "sql")), filter: { sqlExpression: "c = 3" } }));
const ruled = [];
for await (const rule of client.listRules(topic, "ruled")) ruled.push(rule.name);
const subscriptions = [];
for await (const found of client.listSubscriptions(topic)) subscriptions.push(found.subscriptionName);
const topics = [];
for await (const found of client.listTopics()) topics.push(found.name);
const topicRuntime = plain(await client.getTopicRuntimeProperties(topic));
const runtimes = [];
for await (const found of client.listSubscriptionsRuntimeProperties(topic)) runtimes.push(plain(found));
const exists = [
  await client.topicExists(topic), await client.subscriptionExists(topic, "one"), await client.ruleExists(topic, "One", "sql"),
  await client.topicExists("none/such"), await client.subscriptionExists(topic, "two"), await client.ruleExists(topic, "One", "two"),
];
const conflict = await failure(() => client.createSubscription(topic, "ONE"));
await client.deleteRule(topic, "One", "sql");
await client.deleteSubscription(topic, "One");
await client.deleteTopic(topic);
const missing = await failure(() => client.getSubscription(topic, "One"));

tell({
  createdTopic, readTopic, created, read, withRule: withRule.subscriptionName, rules, got, changed, ruled, subscriptions,
  topics, topicRuntime, runtimes, exists, conflict, missing,
});
