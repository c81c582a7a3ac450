// The official JavaScript administration client against the admin port.
// The connection string is the one argument; a JSON object of what was seen is printed.
const { ServiceBusAdministrationClient } = require("@azure/service-bus");

const [connectionString, wrongConnectionString] = process.argv.slice(2);
// Refusals that invite a retry shall be seen at once.
const client = new ServiceBusAdministrationClient(connectionString, {
  retryOptions: { maxRetries: 0 },
});
const seen = {};

async function refusal(ask) {
  try {
    await ask();
  } catch (error) {
    return { code: error.code, status: error.statusCode, message: error.message };
  }
  return { code: "none" };
}

async function namesOf(list) {
  const names = [];
  for await (const item of list) names.push(item.name ?? item.subscriptionName);
  return names;
}

async function queues() {
  const given = {
    lockDuration: "PT13S",
    maxSizeInMegabytes: 2048,
    requiresDuplicateDetection: true,
    requiresSession: true,
    defaultMessageTimeToLive: "P3DT4S",
    deadLetteringOnMessageExpiration: true,
    duplicateDetectionHistoryTimeWindow: "PT12M",
    maxDeliveryCount: 14,
    enableBatchedOperations: false,
    userMetadata: "<what> & 'why' \"é\" ",
    autoDeleteOnIdle: "PT10M",
    enablePartitioning: true,
    enableExpress: true,
    authorizationRules: [
      {
        claimType: "SharedAccessKey",
        accessRights: ["Manage", "Send", "Listen"],
        keyName: "all",
        primaryKey: "cHJpbWFyeQ==",
        secondaryKey: "c2Vjb25kYXJ5",
      },
      {
        claimType: "SharedAccessKey",
        accessRights: ["Listen"],
        keyName: "one",
        primaryKey: "cHJpbWFyeTI=",
        secondaryKey: "c2Vjb25kYXJ5Mg==",
      },
    ],
  };
  await client.createQueue("all/settings", given);
  const found = await client.getQueue("ALL/settings");
  seen.queueName = found.name;
  seen.queueKept = Object.keys(given).filter(
    (key) => JSON.stringify(found[key]) === JSON.stringify(given[key]),
  ).length === Object.keys(given).length;

  await client.createQueue("target");
  const queue = await client.createQueue("changing", { forwardTo: "target", userMetadata: "old" });
  seen.forwardTo = queue.forwardTo;
  const changed = await client.updateQueue({
    ...queue,
    maxDeliveryCount: 3,
    status: "SendDisabled",
    userMetadata: undefined,
  });
  seen.changed = [changed.maxDeliveryCount, changed.status, changed.userMetadata ?? null];
  seen.changedTarget = changed.forwardTo;
  const runtime = await client.getQueueRuntimeProperties("target");
  seen.runtime = [
    runtime.totalMessageCount,
    runtime.activeMessageCount,
    runtime.deadLetterMessageCount,
    runtime.scheduledMessageCount,
    runtime.transferMessageCount,
    runtime.transferDeadLetterMessageCount,
    runtime.sizeInBytes,
    runtime.createdAt.toISOString(),
    runtime.accessedAt.toISOString(),
  ];
  seen.queues = await namesOf(client.listQueues());
  seen.pages = [];
  for await (const page of client.listQueues().byPage({ maxPageSize: 2 })) {
    seen.pages.push(page.map((item) => item.name));
  }
  seen.existence = [await client.queueExists("target"), await client.queueExists("none")];
  await client.deleteQueue("TARGET");
  seen.queuesAfter = await namesOf(client.listQueues());
}

async function topics() {
  await client.createTopic("Fruit/fresh", { userMetadata: "a", supportOrdering: false });
  const topic = await client.getTopic("fruit/fresh");
  seen.topic = [topic.name, topic.userMetadata, topic.supportOrdering];
  await client.updateTopic({ ...topic, userMetadata: "ripe" });
  await client.createSubscription("Fruit/fresh", "Audit", {
    lockDuration: "PT9S",
    deadLetteringOnFilterEvaluationExceptions: false,
    defaultRuleOptions: { name: "first", filter: { sqlExpression: "a = 1" } },
  });
  const subscription = await client.getSubscription("Fruit/fresh", "audit");
  seen.subscription = [
    subscription.topicName,
    subscription.subscriptionName,
    subscription.lockDuration,
    subscription.deadLetteringOnFilterEvaluationExceptions,
  ];
  await client.updateSubscription({ ...subscription, maxDeliveryCount: 2 });
  const runtime = await client.getSubscriptionRuntimeProperties("Fruit/fresh", "Audit");
  seen.subscriptionRuntime = [runtime.totalMessageCount, runtime.subscriptionName];
  const topicRuntime = await client.getTopicRuntimeProperties("Fruit/fresh");
  seen.topicRuntime = [topicRuntime.subscriptionCount, topicRuntime.scheduledMessageCount];
  seen.topics = await namesOf(client.listTopics());
  seen.subscriptions = await namesOf(client.listSubscriptions("Fruit/fresh"));
}

async function rules() {
  const where = ["Fruit/fresh", "Audit"];
  const values = {
    text: "a <b> & 'c'",
    number: 1.5,
    flag: true,
    moment: new Date("2030-01-02T03:04:05.678Z"),
  };
  const filters = {
    sql: { sqlExpression: "x < @text", sqlParameters: values },
    plain: { sqlExpression: "x = 1" },
    correlation: {
      correlationId: "a",
      messageId: "b",
      to: "c",
      replyTo: "d",
      subject: "e",
      sessionId: "f",
      replyToSessionId: "g",
      contentType: "h",
      applicationProperties: values,
    },
  };
  seen.filters = {};
  for (const [name, filter] of Object.entries(filters)) {
    await client.createRule(...where, name, filter, {
      sqlExpression: "SET y = @text",
      sqlParameters: { text: "z" },
    });
    const found = await client.getRule(...where, name);
    // Compared by their keys in order, with what is undefined left out.
    const sorted = (value) => JSON.stringify(value, (_, inner) =>
      inner && typeof inner === "object" && !(inner instanceof Date)
        ? Object.fromEntries(Object.entries(inner).sort())
        : inner);
    seen.filters[name] = [
      sorted(found.filter) === sorted(filter),
      found.action.sqlExpression,
      found.action.sqlParameters,
    ];
  }
  const rule = await client.getRule(...where, "plain");
  await client.updateRule(...where, { ...rule, filter: { subject: "only" }, action: undefined });
  const changed = await client.getRule(...where, "plain");
  seen.changedRule = [changed.name, changed.filter.subject, changed.action.sqlExpression ?? null];
  seen.rules = await namesOf(client.listRules(...where));
  await client.deleteRule(...where, "first");
  seen.rulesAfter = await namesOf(client.listRules(...where));
}

async function refusals() {
  const stranger = new ServiceBusAdministrationClient(wrongConnectionString);
  const queue = await client.getQueue("changing");
  seen.refusals = {
    existing: await refusal(() => client.createQueue("changing")),
    topicOverQueue: await refusal(() => client.createTopic("changing")),
    missing: await refusal(() => client.getQueue("none")),
    missingRule: await refusal(() => client.getRule("Fruit/fresh", "Audit", "none")),
    deleted: await refusal(() => client.deleteTopic("none")),
    updated: await refusal(() => client.updateQueue({ ...queue, name: "none" })),
    longLock: await refusal(() => client.createQueue("long", { lockDuration: "PT6M" })),
    immutable: await refusal(() => client.updateQueue({ ...queue, requiresSession: true })),
    noDuration: await refusal(() => client.createQueue("bad", { lockDuration: "soon" })),
    stranger: await refusal(() => stranger.getQueue("changing")),
    busy: await refusal(() => client.getQueue("busy")),
    quota: await refusal(() => client.createQueue("quota")),
  };
}

async function main() {
  const namespace = await client.getNamespaceProperties();
  seen.namespace = [namespace.name, namespace.messagingSku, namespace.createdAt.toISOString()];
  await queues();
  await topics();
  await rules();
  await refusals();
  await client.deleteSubscription("Fruit/fresh", "Audit");
  await client.deleteTopic("Fruit/fresh");
  seen.end = await namesOf(client.listTopics());
  console.log(JSON.stringify(seen));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
