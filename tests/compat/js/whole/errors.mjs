// Bad input and missing rights: the code that the SDK gives for each.
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";
import { admin, client, codeOf, given, OPTIONS, queue, send, subscription, tell, topic } from "./kit.mjs";

const receive = (from, ...path) =>
  from.createReceiver(...path).receiveMessages(1, { maxWaitTimeInMs: 500 });

async function withClient(connectionString, use) {
  const other = new ServiceBusClient(connectionString, OPTIONS);
  try {
    return await use(other);
  } finally {
    await other.close();
  }
}

async function unknown() {
  const name = await topic();
  return {
    send: await codeOf(send("no-such-queue", { body: 1 })),
    receive: await codeOf(receive(client, "no-such-queue")),
    subscription: await codeOf(receive(client, name, "no-such-subscription")),
    topicAsQueue: await codeOf(receive(client, name)),
  };
}

async function sizes() {
  const name = await queue();
  const batch = await client.createSender(name).createMessageBatch();
  return {
    message: await codeOf(send(name, { body: "x".repeat(300000) })),
    limit: batch.maxSizeInBytes,
    fits: batch.tryAddMessage({ body: "x".repeat(300000) }),
  };
}

async function quota() {
  const name = await queue({ maxSizeInMegabytes: 1 });
  const block = { body: "x".repeat(200000) };
  let sent = 0;
  let code = null;
  while (code === null && sent++ < 50) code = await codeOf(send(name, block));
  return { code, full: sent > 5 };
}

async function disabled() {
  const name = await queue({ status: "Disabled" });
  return {
    send: await codeOf(send(name, { body: 1 })),
    receive: await codeOf(receive(client, name)),
  };
}

async function rights() {
  const use = (connectionString) => ({
    send: withClient(connectionString, (other) =>
      codeOf(other.createSender(given.guarded).sendMessages({ body: 1 })),
    ),
    receive: withClient(connectionString, (other) => codeOf(receive(other, given.guarded))),
  });
  const told = {};
  for (const [name, connectionString] of Object.entries(given.strings)) {
    const { send, receive } = use(connectionString);
    told[name] = [await send, await receive];
  }
  return told;
}

async function administration() {
  const name = await queue();
  const sub = await topic();
  const rule = await subscription(sub);
  const stranger = new ServiceBusAdministrationClient(given.badAdminString, {
    retryOptions: { maxRetries: 0 },
  });
  return {
    unauthorized: await codeOf(stranger.getQueue(name)),
    missing: await codeOf(admin.getQueue("no-such-queue")),
    exists: await codeOf(admin.createQueue(name.toUpperCase())),
    badValue: await codeOf(admin.createQueue(`${name}-bad`, { lockDuration: "PT10M" })),
    badFilter: await codeOf(admin.createRule(sub, rule, "bad", { sqlExpression: "a >" })),
    gone: await codeOf(admin.deleteQueue("no-such-queue")),
  };
}

async function goesOn() {
  const name = await queue();
  await codeOf(send("no-such-queue", { body: 1 }));
  await send(name, { body: "after" });
  const [got] = await receive(client, name, { receiveMode: "receiveAndDelete" });
  return got.body;
}

tell({ unknown, sizes, quota, disabled, rights, administration, goesOn });
