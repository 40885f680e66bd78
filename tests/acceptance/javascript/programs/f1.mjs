// The list in docs/reference/http-coverage.md, as far as it is the administration client's: unmodified, over TLS.

import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";
import { RestError } from "@azure/core-rest-pipeline";
import { failure, given, message, tell } from "./common.mjs";

const once = { retryOptions: { maxRetries: 0 } };
const client = new ServiceBusAdministrationClient(given.address, once);
const plain = ({ _response, ...rest }) => rest;
const { name } = given;

async function all(pages) {
  const found = [];
  for await (const one of pages) found.push(one);
  return found;
}

async function item1() {
  const queue = `${name}-q`;
  const create = {
    queue: () => client.createQueue(queue),
    topic: () => client.createTopic(name),
    subscription: () => client.createSubscription(name, "Sub"),
    rule: () => client.createRule(name, "Sub", "Rule"),
  };
  const get = {
    queue: () => client.getQueue(queue),
    topic: () => client.getTopic(name),
    subscription: () => client.getSubscription(name, "Sub"),
    rule: () => client.getRule(name, "Sub", "Rule"),
  };
  const update = {
    queue: (one) => client.updateQueue(one),
    topic: (one) => client.updateTopic(one),
    subscription: (one) => client.updateSubscription(one),
    rule: (one) => client.updateRule(name, "Sub", one),
  };
  const list = {
    queue: async () => (await all(client.listQueues())).some((one) => one.name === queue),
    topic: async () => (await all(client.listTopics())).some((one) => one.name === name),
    subscription: async () => (await all(client.listSubscriptions(name))).some((one) => one.subscriptionName === "Sub"),
    rule: async () => (await all(client.listRules(name, "Sub"))).some((one) => one.name === "Rule"),
  };
  const exists = {
    queue: () => client.queueExists(queue),
    topic: () => client.topicExists(name),
    subscription: () => client.subscriptionExists(name, "Sub"),
    rule: () => client.ruleExists(name, "Sub", "Rule"),
  };
  const remove = {
    rule: () => client.deleteRule(name, "Sub", "Rule"),
    subscription: () => client.deleteSubscription(name, "Sub"),
    topic: () => client.deleteTopic(name),
    queue: () => client.deleteQueue(queue),
  };
  const found = {};
  for (const kind of Object.keys(create)) {
    const before = await exists[kind]();
    await create[kind]();
    const one = await get[kind]();
    if (kind === "rule") one.filter = { sqlExpression: "a = 1" };
    else one.userMetadata = "changed";
    await update[kind](one);
    const again = await get[kind]();
    const changed = kind === "rule" ? again.filter.sqlExpression : again.userMetadata;
    found[kind] = [before, await exists[kind](), changed, await list[kind]()];
  }
  for (const kind of Object.keys(remove)) {
    await remove[kind]();
    found[kind].push(await exists[kind](), (await failure(get[kind])).code);
  }
  return found;
}

async function item2() {
  const target = `${name}-target`;
  await client.createQueue(target);
  const forward = { forwardTo: target, forwardDeadLetteredMessagesTo: target };
  await client.createTopic(name, given.topic);
  const pairs = [];
  const both = async (get, update) => {
    const before = await get();
    await update(before);
    pairs.push([plain(before), plain(await get())]);
  };
  await client.createQueue(`${name}-all`, given.queue);
  await both(() => client.getQueue(`${name}-all`), (one) => client.updateQueue(one));
  await client.createQueue(`${name}-forward`, { ...forward, authorizationRules: given.queue.authorizationRules });
  await both(() => client.getQueue(`${name}-forward`), (one) => client.updateQueue(one));
  await both(() => client.getTopic(name), (one) => client.updateTopic(one));
  await client.createSubscription(name, "all", given.subscription);
  await both(() => client.getSubscription(name, "all"), (one) => client.updateSubscription(one));
  await client.createSubscription(name, "forward", forward);
  await both(() => client.getSubscription(name, "forward"), (one) => client.updateSubscription(one));
  return pairs;
}

async function item3() {
  const topic = `${name}-counted`;
  await client.createTopic(topic);
  const made = [];
  const found = [];
  for (const number of [0, 1, 100, 101, 250]) {
    while (made.length < number) {
      const next = `${"Nn"[made.length % 2]}${String((made.length * 7919) % 1000).padStart(3, "0")}`;
      await client.createSubscription(topic, next);
      made.push(next);
    }
    const listed = (await all(client.listSubscriptions(topic))).map((one) => one.subscriptionName);
    const pages = [];
    for await (const page of client.listSubscriptions(topic).byPage({ maxPageSize: 60 })) pages.push(page.length);
    found.push([listed, pages]);
  }
  return [made, found];
}

async function item4() {
  const found = [];
  for (const legal of given.names) {
    await client.createQueue(legal);
    const other = [...legal].map((letter) => (letter === letter.toLowerCase() ? letter.toUpperCase() : letter.toLowerCase()));
    const read = await client.getQueue(other.join(""));
    const listed = (await all(client.listQueues())).some((one) => one.name === legal);
    await client.deleteQueue(legal.toUpperCase());
    await client.createTopic(legal);
    await client.createSubscription(legal, "s");
    const rules = (await all(client.listRules(legal, "S"))).map((one) => one.name);
    const rule = (await client.getRule(legal, "s", "$Default")).name;
    await client.deleteTopic(legal);
    found.push([read.maxDeliveryCount, listed, rules, rule]);
  }
  return found;
}

async function item5() {
  const [queue, topic] = [`${name}-counts`, `${name}-counts-topic`];
  await client.createQueue(queue);
  await client.createTopic(topic);
  await client.createSubscription(topic, "s");
  const read = async () => [
    plain(await client.getQueueRuntimeProperties(queue)),
    plain(await client.getTopicRuntimeProperties(topic)),
    plain(await client.getSubscriptionRuntimeProperties(topic, "s")),
  ];
  const empty = await read();
  const messages = new ServiceBusClient(given.connection);
  for (const entity of [queue, topic]) {
    const sender = messages.createSender(entity);
    await sender.sendMessages([message("a"), message("b"), message("c")]);
    await sender.scheduleMessages(message("later"), new Date(Date.now() + 600_000));
  }
  await messages.close();
  const runtimes = (await all(client.listQueuesRuntimeProperties())).filter((one) => one.name === queue);
  return [empty, await read(), runtimes.map(plain)];
}

async function item6() {
  const readable = (await all(client.listRules(given.rules, "readable"))).map(plain);
  const strange = await failure(() => all(client.listRules(given.rules, "strange")));
  await client.createRule(given.rules, "own", "mine", {
    sqlExpression: "a = @a",
    sqlParameters: { "@a": 3, "@b": 1.5, "@c": "x & y", "@d": true, "@e": new Date("2026-01-02T03:04:05Z") },
  });
  const own = plain(await client.getRule(given.rules, "own", "mine"));
  return [readable, strange, own];
}

async function item7() {
  const queue = await client.createQueue(`${name}-errors`);
  const unread = new ServiceBusAdministrationClient(given.wrong, once);
  const sends = new ServiceBusAdministrationClient(given.sends, once);
  const limited = new ServiceBusAdministrationClient(given.limited, once);
  const calls = {
    value: () => client.updateQueue({ ...queue, lockDuration: "P25D" }),
    immutable: () => client.updateQueue({ ...queue, requiresSession: true }),
    filter: async () => {
      await client.createTopic(`${name}-errors-topic`);
      await client.createSubscription(`${name}-errors-topic`, "s");
      await client.createRule(`${name}-errors-topic`, "s", "wrong", { sqlExpression: "a = = b" });
    },
    conflict: () => client.createQueue(queue.name),
    missing: () => client.getQueue("none/such"),
    update: () => client.updateQueue({ ...queue, name: "none/such" }),
    remove: () => client.deleteQueue("none/such"),
    parent: () => client.createSubscription("none/such", "s"),
    key: () => unread.getQueue(queue.name),
    right: () => sends.getQueue(queue.name),
    quota: () => limited.createQueue("second"),
    feed: () => limited.getQueue("none/such"),
  };
  const found = {};
  for (const [kind, call] of Object.entries(calls)) found[kind] = await failure(call);
  found.exists = await limited.queueExists("none/such");
  return found;
}

async function item8() {
  const lost = [];
  const ids = [];
  const forgetful = new ServiceBusAdministrationClient(given.address, { retryOptions: { maxRetries: 3, retryDelayInMs: 10 } });
  const policy = {
    name: "forgetful",
    async sendRequest(request, next) {
      const response = await next(request);
      if (request.method === "GET") return response;
      ids.push(request.headers.get("x-ms-client-request-id"));
      if (lost.includes(request.method)) return response;
      lost.push(request.method);
      throw new RestError("the answer is lost", { code: "ECONNRESET", request });
    },
  };
  forgetful.pipeline.addPolicy(policy, { afterPhase: "Retry" });
  const made = await forgetful.createQueue(`${name}-again`);
  await forgetful.deleteQueue(`${name}-again`);
  return [made.name, lost, ids];
}

async function item9() {
  const [own, other] = [`${name}-orders`, `${name}-orders2`];
  await client.createQueue(own, { authorizationRules: given.queue.authorizationRules });
  await client.createQueue(other);
  const found = [];
  for (const key of [given.queue.authorizationRules[0].primaryKey, given.queue.authorizationRules[0].secondaryKey]) {
    const text = `Endpoint=${given.endpoint};SharedAccessKeyName=ops;SharedAccessKey=${key}`;
    const named = new ServiceBusAdministrationClient(text, once);
    found.push((await named.getQueue(own)).name, (await failure(() => named.getQueue(other))).code);
  }
  return found;
}

async function item11() {
  const chain = [0, 1, 2, 3, 4, 5].map((index) => `${name}-chain-${index}`);
  await client.createQueue(chain[5]);
  const told = [];
  for (let index = 4; index >= 0; index -= 1) {
    const next = chain[index + 1];
    const made = await client.createQueue(chain[index], {
      forwardTo: [next, `${given.endpoint}/${next}`, `sb://localhost/${next}`][index % 3],
    });
    told.unshift(made.forwardTo);
  }
  const cleared = await client.getQueue(chain[0]);
  for (const target of [chain[5], chain[0]]) {
    cleared.forwardTo = target;
    cleared.forwardDeadLetteredMessagesTo = target;
    const changed = await client.updateQueue(cleared);
    told.push(changed.forwardTo, changed.forwardDeadLetteredMessagesTo);
  }
  delete cleared.forwardTo;
  delete cleared.forwardDeadLetteredMessagesTo;
  await client.updateQueue(cleared);
  const after = await client.getQueue(chain[0]);
  const wrong = [
    await failure(() => client.createQueue(`${name}-x`, { forwardTo: `${name}-nowhere` })),
    await failure(() => client.createQueue(`${name}-x`, { forwardTo: `sb://elsewhere.example/${chain[5]}` })),
  ];
  return [chain, told, after.forwardTo ?? null, after.forwardDeadLetteredMessagesTo ?? null, wrong];
}

const items = { 1: item1, 2: item2, 3: item3, 4: item4, 5: item5, 6: item6, 7: item7, 8: item8, 9: item9, 11: item11 };
tell(await items[given.item]());
