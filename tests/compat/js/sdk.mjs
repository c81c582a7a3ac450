// The official JavaScript SDK, unchanged: one scenario on one queue, told as one JSON line.
//
// Enters: a connection string (environment) and a queue's name. Leaves: what was seen, for
// the caller to judge; this script asserts nothing.
import { ServiceBusClient } from "@azure/service-bus";

const [queue] = process.argv.slice(2);
const client = new ServiceBusClient(process.env.CONNECTION_STRING, {
  retryOptions: { maxRetries: 0, timeoutInMs: 10000 },
});
const WAIT = { maxWaitTimeInMs: 5000 };
const EMPTY_WAIT = { maxWaitTimeInMs: 300 };

const sender = client.createSender(queue);
const receiver = client.createReceiver(queue);
const next = async (from = receiver) => (await from.receiveMessages(1, WAIT))[0];
const isEmpty = async (from = receiver) => (await from.receiveMessages(1, EMPTY_WAIT)).length === 0;

async function sendAndComplete() {
  await sender.sendMessages({
    body: { text: "ž" },
    messageId: "m-1",
    subject: "greeting",
    correlationId: "c-1",
    applicationProperties: { whole: 7, real: 1.5, yes: true, text: "ž" },
  });
  const got = await next();
  await receiver.completeMessage(got);
  return {
    body: got.body,
    messageId: got.messageId,
    subject: got.subject,
    correlationId: got.correlationId,
    properties: got.applicationProperties,
    deliveryCount: got.deliveryCount,
    sequenceNumber: got.sequenceNumber.toString(),
    lockTokenLength: got.lockToken.length,
    emptyAfter: await isEmpty(),
  };
}

async function batch() {
  const many = await sender.createMessageBatch();
  for (let number = 0; number < 100; number++) many.tryAddMessage({ body: number });
  await sender.sendMessages(many);
  const bodies = [];
  while (bodies.length < 100) {
    const got = await receiver.receiveMessages(100, WAIT);
    if (got.length === 0) break;
    for (const message of got) {
      bodies.push(message.body);
      await receiver.completeMessage(message);
    }
  }
  return { bodies };
}

async function receiveAndDelete() {
  await sender.sendMessages({ body: "a" });
  const deleting = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
  const got = await next(deleting);
  await deleting.close();
  return { body: got.body, emptyAfter: await isEmpty() };
}

async function abandon() {
  await sender.sendMessages([{ body: "a" }, { body: "b" }]);
  await receiver.abandonMessage(await next(), { tried: "once" });
  const again = await next();
  await receiver.completeMessage(again);
  await receiver.completeMessage(await next());
  return {
    body: again.body,
    deliveryCount: again.deliveryCount,
    tried: again.applicationProperties.tried,
  };
}

async function deferAndFetch() {
  await sender.sendMessages({ body: "later" });
  const got = await next();
  await receiver.deferMessage(got);
  const hidden = await isEmpty();
  const [fetched] = await receiver.receiveDeferredMessages(got.sequenceNumber);
  await receiver.completeMessage(fetched);
  const code = await receiver
    .receiveDeferredMessages(got.sequenceNumber)
    .then(() => null, (error) => error.code);
  return { hidden, body: fetched.body, state: fetched.state, missingCode: code };
}

async function deadLetter() {
  await sender.sendMessages({ body: "bad" });
  await receiver.deadLetterMessage(await next(), {
    deadLetterReason: "unfit",
    deadLetterErrorDescription: "no price",
    seenBy: "clerk",
  });
  const deadLetters = client.createReceiver(queue, { subQueueType: "deadLetter" });
  const dead = await next(deadLetters);
  await deadLetters.completeMessage(dead);
  await deadLetters.close();
  return {
    body: dead.body,
    reason: dead.deadLetterReason,
    description: dead.deadLetterErrorDescription,
    seenBy: dead.applicationProperties.seenBy,
  };
}

async function renew() {
  await sender.sendMessages({ body: "slow" });
  const got = await next();
  const before = got.lockedUntilUtc;
  const renewed = await receiver.renewMessageLock(got);
  await receiver.completeMessage(got);
  return { prolonged: renewed >= before };
}

async function peekAndSchedule() {
  await sender.sendMessages({ body: "a" });
  const due = new Date(Date.now() + 3600_000);
  const [number] = await sender.scheduleMessages({ body: "s" }, due);
  const seen = async () =>
    (await receiver.peekMessages(10, { fromSequenceNumber: number.sub(number).add(1) })).map(
      (message) => [message.body, message.state],
    );
  const before = await seen();
  await sender.cancelScheduledMessages(number);
  const after = await seen();
  await receiver.completeMessage(await next());
  return { before, after };
}

async function subscribe() {
  await sender.sendMessages([{ body: 1 }, { body: 2 }, { body: 3 }]);
  const bodies = [];
  await new Promise((resolve, reject) => {
    receiver.subscribe({
      processMessage: async (message) => {
        if (bodies.push(message.body) === 3) resolve();
      },
      processError: async ({ error }) => reject(error),
    });
  });
  return { bodies };
}

const seen = {};
for (const scenario of [
  sendAndComplete,
  batch,
  receiveAndDelete,
  abandon,
  deferAndFetch,
  deadLetter,
  renew,
  peekAndSchedule,
  subscribe,
]) {
  seen[scenario.name] = await scenario().catch((error) => ({ failed: String(error.stack) }));
}
await client.close();
console.log(JSON.stringify(seen));
