// The official JavaScript SDK on a queue that requires sessions, told as one JSON line.
import { ServiceBusClient } from "@azure/service-bus";

const [queue] = process.argv.slice(2);
const client = new ServiceBusClient(process.env.CONNECTION_STRING, {
  retryOptions: { maxRetries: 0, timeoutInMs: 5000 },
});
const WAIT = { maxWaitTimeInMs: 5000 };
const codeOf = (promise) => promise.then(() => null, (error) => error.code ?? error.name);

const sender = client.createSender(queue);
await sender.sendMessages([
  { body: 1, sessionId: "red" },
  { body: 3, sessionId: "red" },
]);
await sender.sendMessages({ body: 2, sessionId: "blue" });
const withoutSession = await codeOf(sender.sendMessages({ body: 0 }));

const red = await client.acceptSession(queue, "red");
const locked = await codeOf(client.acceptSession(queue, "red"));
await red.setSessionState({ step: 1 });
const state = await red.getSessionState();
const renewed = (await red.renewSessionLock()) > new Date();
const bodies = [];
for (const _ of [1, 2]) {
  const [message] = await red.receiveMessages(1, WAIT);
  bodies.push(message.body);
  await red.completeMessage(message);
}
const free = await client.acceptNextSession(queue);
const freeId = free.sessionId;
const [message] = await free.receiveMessages(1, WAIT);
await free.completeMessage(message);
await free.close();
const noneLeft = await codeOf(client.acceptNextSession(queue));
await client.close();
console.log(JSON.stringify({ withoutSession, locked, state, renewed, bodies, freeId, noneLeft }));
