// Sessions: accepting, state, handing over, losing the lock while a handler waits.
import { bodies, client, codeOf, queue, send, sleep, take, tell } from "./kit.mjs";

async function handOver() {
  const name = await queue({ requiresSession: true });
  const job = { sessionId: "job" };
  await send(name, { body: 1, ...job }, { body: 2, ...job }, { body: 3, ...job });
  const first = await client.acceptSession(name, "job");
  const taken = await codeOf(client.acceptSession(name, "job"));
  const [one] = await take(first, 1);
  await first.completeMessage(one);
  await first.setSessionState({ done: 1 });
  await first.close();
  const second = await client.acceptNextSession(name);
  const state = await second.getSessionState();
  const rest = await take(second, 2);
  await second.setSessionState(null);
  const cleared = await second.getSessionState();
  return { taken, id: second.sessionId, state, cleared, bodies: bodies(rest) };
}

async function lost() {
  const name = await queue({ requiresSession: true, lockDuration: "PT5S" });
  await send(name, { body: "a", sessionId: "s" });
  const receiver = await client.acceptSession(name, "s", { maxAutoLockRenewalDurationInMs: 0 });
  const [late] = await take(receiver, 1);
  const told = await new Promise((resolve) => {
    receiver.subscribe(
      { processMessage: async () => {}, processError: async ({ error }) => resolve(error.code) },
      { autoCompleteMessages: false },
    );
  });
  const settled = await codeOf(receiver.completeMessage(late));
  const again = await client.acceptSession(name, "s");
  const [message] = await take(again, 1);
  return { told, settled, body: message.body, deliveryCount: message.deliveryCount };
}

async function renewed() {
  const name = await queue({ requiresSession: true, lockDuration: "PT5S" });
  await send(name, { body: "a", sessionId: "s" });
  const receiver = await client.acceptSession(name, "s");
  const before = receiver.sessionLockedUntilUtc;
  const [message] = await take(receiver, 1);
  await sleep(6500);
  await receiver.completeMessage(message);
  return { prolonged: receiver.sessionLockedUntilUtc > before };
}

async function misfits() {
  const plain = await queue();
  const name = await queue({ requiresSession: true });
  return {
    noSessionId: await codeOf(send(name, { body: 0 })),
    noSessions: await codeOf(client.acceptSession(plain, "s")),
    noSession: await codeOf(client.createReceiver(name).receiveMessages(1, { maxWaitTimeInMs: 500 })),
  };
}

tell({ handOver, lost, renewed, misfits });
