// The administration client, unmodified, over TLS with the generated authority.

import { ServiceBusAdministrationClient } from "@azure/service-bus";
import { failure, given, tell } from "./common.mjs";

const client = new ServiceBusAdministrationClient(given.address, { retryOptions: { maxRetries: 0 } });
const plain = ({ _response, ...rest }) => rest;

const created = plain(await client.createQueue(given.queue, given.properties));
const read = plain(await client.getQueue(given.queue.toUpperCase()));
await client.updateQueue(await client.getQueue(given.queue));
const unchanged = plain(await client.getQueue(given.queue));
const changed = plain(await client.updateQueue({ ...read, ...given.changes }));
const refused = await failure(async () => client.updateQueue({ ...read, requiresSession: !read.requiresSession }));
const runtime = plain(await client.getQueueRuntimeProperties(given.queue));
const exists = [await client.queueExists(given.queue), await client.queueExists("none/such")];
const conflict = await failure(() => client.createQueue(given.queue));
const listed = [];
for await (const queue of client.listQueues()) listed.push(queue.name);
const pages = [];
for await (const page of client.listQueues().byPage({ maxPageSize: 7 })) pages.push(page.length);
const runtimes = [];
for await (const queue of client.listQueuesRuntimeProperties()) runtimes.push(queue.name);
await client.deleteQueue(given.queue);
const missing = await failure(() => client.getQueue(given.queue));
const missingUpdate = await failure(() => client.updateQueue(read));
const missingDelete = await failure(() => client.deleteQueue(given.queue));
const namespace = plain(await client.getNamespaceProperties());
const stranger = new ServiceBusAdministrationClient(given.wrong, { retryOptions: { maxRetries: 0 } });
const unauthorized = await failure(() => stranger.getQueue(given.queue));

tell({
  created, read, unchanged, changed, refused, runtime, exists, conflict, listed, pages, runtimes, missing, missingUpdate,
  missingDelete, namespace, unauthorized,
});
