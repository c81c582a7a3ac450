// The admin client, and the other transports: TLS and WebSocket.
import { ServiceBusClient } from "@azure/service-bus";
import { admin, client, given, OPTIONS, queue, send, subscription, take, tell, topic } from "./kit.mjs";

async function queues() {
  const name = await queue({
    lockDuration: "PT45S",
    maxDeliveryCount: 7,
    requiresSession: true,
    defaultMessageTimeToLive: "PT1H",
    deadLetteringOnMessageExpiration: true,
    userMetadata: "žluťoučký <&>",
  });
  const made = await admin.getQueue(name);
  made.maxDeliveryCount = 8;
  const updated = await admin.updateQueue(made);
  const before = await admin.queueExists(name);
  const listed = [];
  for await (const found of admin.listQueues()) listed.push(found.name);
  await admin.deleteQueue(name);
  return {
    lockDuration: made.lockDuration,
    requiresSession: made.requiresSession,
    timeToLive: made.defaultMessageTimeToLive,
    userMetadata: made.userMetadata,
    updated: updated.maxDeliveryCount,
    exists: [before, await admin.queueExists(name)],
    listed: listed.includes(name),
  };
}

async function counts() {
  const name = await queue();
  const sender = client.createSender(name);
  await sender.sendMessages([{ body: 1 }, { body: 2 }, { body: 3 }]);
  await sender.scheduleMessages({ body: 4 }, new Date(Date.now() + 60000));
  const receiver = client.createReceiver(name);
  const [first] = await take(receiver, 1);
  await receiver.deadLetterMessage(first);
  const found = await admin.getQueueRuntimeProperties(name);
  return [
    found.activeMessageCount,
    found.scheduledMessageCount,
    found.deadLetterMessageCount,
    found.totalMessageCount,
  ];
}

async function rules() {
  const name = await topic();
  const sub = await subscription(name);
  await admin.createRule(name, sub, "sql", { sqlExpression: "a = @p", sqlParameters: { "@p": 1 } }, {
    sqlExpression: "SET b = 2",
  });
  await admin.createRule(name, sub, "correlation", {
    subject: "s",
    applicationProperties: { text: "t", number: 1.5, yes: true },
  });
  const sql = await admin.getRule(name, sub, "sql");
  const correlation = await admin.getRule(name, sub, "correlation");
  const names = [];
  for await (const rule of admin.listRules(name, sub)) names.push(rule.name);
  const runtime = await admin.getTopicRuntimeProperties(name);
  return {
    names,
    sql: [sql.filter.sqlExpression, sql.filter.sqlParameters, sql.action.sqlExpression],
    correlation: [correlation.filter.subject, correlation.filter.applicationProperties],
    subscriptions: runtime.subscriptionCount,
  };
}

async function namespace() {
  const found = await admin.getNamespaceProperties();
  return [found.name, found.messagingSku];
}

async function exchange(connectionString, options) {
  const name = await queue();
  const other = new ServiceBusClient(connectionString, { ...OPTIONS, ...options });
  try {
    const sender = other.createSender(name);
    await sender.sendMessages({ body: "a" });
    await sender.sendMessages({ body: "x".repeat(200000) });
    const receiver = other.createReceiver(name);
    const got = await take(receiver, 2);
    for (const message of got) await receiver.completeMessage(message);
    return got.map((message) => message.body.length);
  } finally {
    await other.close();
  }
}

const tls = () => exchange(given.tlsString);
const webSocket = () =>
  exchange(given.adminConnectionString, { webSocketOptions: { webSocket: globalThis.WebSocket } });

tell({ queues, counts, rules, namespace, tls, webSocket });
