// What every script here starts from: clients, entities of its own, and a way to tell.
//
// Enters: one JSON text on standard input. Leaves: one JSON line, what each scenario saw or
// the error it ended with. The scripts assert nothing; the caller judges.
import { readFileSync } from "node:fs";
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";

export const given = JSON.parse(readFileSync(0, "utf8"));
export const OPTIONS = { retryOptions: { maxRetries: 0, timeoutInMs: 15000 } };
export const client = new ServiceBusClient(given.connectionString, OPTIONS);
export const admin = new ServiceBusAdministrationClient(given.adminConnectionString, {
  retryOptions: { maxRetries: 0 },
});
export const WAIT = { maxWaitTimeInMs: 10000 };
export const EMPTY_WAIT = { maxWaitTimeInMs: 400 };

let made = 0;
const fresh = () => `${given.prefix}-${made++}`;

export async function queue(settings = {}) {
  const name = fresh();
  await admin.createQueue(name, settings);
  return name;
}

export async function topic(settings = {}) {
  const name = fresh();
  await admin.createTopic(name, settings);
  return name;
}

export async function subscription(topicName, settings = {}) {
  const name = fresh();
  await admin.createSubscription(topicName, name, settings);
  return name;
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
export const codeOf = (promise) =>
  promise.then(
    () => null,
    (error) => error.code ?? error.name,
  );

export async function send(entity, ...messages) {
  const sender = client.createSender(entity);
  for (const message of messages) await sender.sendMessages(message);
  await sender.close();
}

export async function take(receiver, count) {
  const got = [];
  while (got.length < count) {
    const more = await receiver.receiveMessages(count - got.length, WAIT);
    if (more.length === 0) throw new Error(`only ${got.length} of ${count} messages came`);
    got.push(...more);
  }
  return got;
}

export const bodies = (messages) => messages.map((message) => message.body);

export async function isEmpty(receiver) {
  return (await receiver.receiveMessages(1, EMPTY_WAIT)).length === 0;
}

export async function tell(scenarios) {
  const told = {};
  const run = async ([name, scenario]) => {
    try {
      told[name] = await scenario();
    } catch (error) {
      told[name] = { error: `${error.code ?? error.name}: ${error.message}` };
    }
  };
  await Promise.all(Object.entries(scenarios).map(run));
  await client.close();
  console.log(JSON.stringify(told));
}
