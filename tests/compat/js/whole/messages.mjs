// Topics, rules, sessions, scheduling, deferral, duplicates, locks and expiry.
import Long from "long";
import {
  admin, bodies, client, codeOf, isEmpty, queue, send, sleep, subscription, take, tell, topic,
} from "./kit.mjs";

async function rules() {
  const name = await topic();
  const sub = await subscription(name);
  const manager = client.createRuleManager(name, sub);
  await manager.createRule("red", { correlationId: "c", applicationProperties: { colour: "red" } });
  await manager.createRule(
    "large",
    { sqlExpression: "size > 10" },
    { sqlExpression: "SET seen = 'yes'" },
  );
  const twice = await codeOf(manager.createRule("red", { subject: "x" }));
  const bad = await codeOf(manager.createRule("bad", { sqlExpression: "size >" }));
  await manager.deleteRule("$Default");
  const missing = await codeOf(manager.deleteRule("$Default"));
  const found = {};
  for await (const rule of manager.listRules()) found[rule.name] = rule;
  await send(
    name,
    { body: "neither", applicationProperties: { size: 1 } },
    { body: "red", correlationId: "c", applicationProperties: { colour: "red" } },
    { body: "large", applicationProperties: { size: 11 } },
  );
  const receiver = client.createReceiver(name, sub, { receiveMode: "receiveAndDelete" });
  const got = await take(receiver, 2);
  return {
    names: Object.keys(found).sort(),
    red: found.red.filter.applicationProperties,
    large: [found.large.filter.sqlExpression, found.large.action.sqlExpression],
    twice,
    bad,
    missing,
    bodies: bodies(got),
    seen: got[1].applicationProperties.seen,
    empty: await isEmpty(receiver),
  };
}

async function scheduling() {
  const name = await queue();
  const sender = client.createSender(name);
  const due = new Date(Date.now() + 2500);
  const [kept, cancelled] = await sender.scheduleMessages([{ body: "kept" }, { body: "no" }], due);
  await sender.cancelScheduledMessages(cancelled);
  const again = await codeOf(sender.cancelScheduledMessages(cancelled));
  const receiver = client.createReceiver(name);
  const [got] = await take(receiver, 1);
  await receiver.completeMessage(got);
  return {
    again,
    body: got.body,
    inTime: got.enqueuedTimeUtc >= due,
    newNumber: got.sequenceNumber.greaterThan(kept),
    scheduled: Math.abs(got.scheduledEnqueueTimeUtc - due) < 5,
  };
}

async function deferral() {
  const name = await queue();
  await send(name, { body: "a" }, { body: "b" });
  const receiver = client.createReceiver(name);
  const [first, second] = await take(receiver, 2);
  await receiver.deferMessage(first, { why: "later" });
  await receiver.completeMessage(second);
  const empty = await isEmpty(receiver);
  const [fetched] = await receiver.receiveDeferredMessages(first.sequenceNumber);
  const seen = [fetched.body, fetched.state, fetched.deliveryCount, fetched.applicationProperties];
  await receiver.deadLetterMessage(fetched, { deadLetterReason: "r", extra: 1 });
  const missing = await codeOf(receiver.receiveDeferredMessages([Long.fromNumber(77)]));
  const graves = client.createReceiver(name, { subQueueType: "deadLetter" });
  const [dead] = await take(graves, 1);
  return { empty, seen, missing, dead: [dead.body, dead.deadLetterReason, dead.applicationProperties] };
}

async function duplicates() {
  const name = await queue({ requiresDuplicateDetection: true });
  const message = { body: "a", messageId: "same" };
  await send(name, message, message, [message, { body: "b", messageId: "other" }]);
  const receiver = client.createReceiver(name, { receiveMode: "receiveAndDelete" });
  return { bodies: bodies(await take(receiver, 2)), empty: await isEmpty(receiver) };
}

async function deliveryLimit() {
  const name = await queue();
  await send(name, { body: "poison" });
  const receiver = client.createReceiver(name);
  const counts = [];
  for (;;) {
    const [got] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 });
    if (got === undefined) break;
    counts.push(got.deliveryCount);
    await receiver.abandonMessage(got);
  }
  const graves = client.createReceiver(name, { subQueueType: "deadLetter" });
  const [dead] = await take(graves, 1);
  return {
    counts,
    reason: dead.deadLetterReason,
    deliveryCount: dead.deliveryCount,
    source: dead.deadLetterSource === name,
  };
}

async function lockLost() {
  const name = await queue({ lockDuration: "PT5S" });
  await send(name, { body: "a" });
  const receiver = client.createReceiver(name, { maxAutoLockRenewalDurationInMs: 0 });
  const [late] = await take(receiver, 1);
  await sleep(5500);
  const code = await codeOf(receiver.completeMessage(late));
  const renew = await codeOf(receiver.renewMessageLock(late));
  const [again] = await take(receiver, 1);
  await receiver.completeMessage(again);
  return { code, renew, deliveryCount: again.deliveryCount, empty: await isEmpty(receiver) };
}

async function competing() {
  const name = await queue();
  const all = Array.from({ length: 60 }, (_, number) => ({ body: number }));
  await send(name, all);
  const work = async () => {
    const receiver = client.createReceiver(name);
    const done = [];
    for (;;) {
      const got = await receiver.receiveMessages(5, { maxWaitTimeInMs: 1500 });
      if (got.length === 0) return done;
      for (const message of got) {
        await receiver.completeMessage(message);
        done.push(message.body);
      }
    }
  };
  const [first, second] = await Promise.all([work(), work()]);
  return {
    all: [...first, ...second].sort((a, b) => a - b),
    both: first.length > 0 && second.length > 0,
  };
}

async function expiry() {
  const name = await queue({ deadLetteringOnMessageExpiration: true });
  await send(name, { body: "late", timeToLive: 1000 });
  await sleep(1500);
  const receiver = client.createReceiver(name);
  const empty = await isEmpty(receiver);
  const graves = client.createReceiver(name, { subQueueType: "deadLetter" });
  const [dead] = await take(graves, 1);
  return { empty, reason: dead.deadLetterReason };
}

async function forwarding() {
  const target = await queue();
  const source = await queue({ forwardTo: target });
  await send(source, { body: "a" });
  const receiver = client.createReceiver(target, { receiveMode: "receiveAndDelete" });
  const arrived = bodies(await take(receiver, 1));
  const refused = await codeOf(client.createReceiver(source).receiveMessages(1, { maxWaitTimeInMs: 500 }));
  await admin.deleteQueue(target);
  await send(source, { body: "b" });
  const graves = client.createReceiver(source, { subQueueType: "transferDeadLetter" });
  const [dead] = await take(graves, 1);
  return { arrived, refused, dead: [dead.body, dead.deadLetterReason] };
}

async function peeking() {
  const name = await queue();
  await send(name, { body: "a" }, { body: "b" });
  const receiver = client.createReceiver(name);
  const shown = await receiver.peekMessages(10);
  const bare = await receiver.peekMessages(10, { fromSequenceNumber: Long.ONE, omitMessageBody: true });
  return {
    bodies: bodies(shown),
    states: shown.map((message) => message.state),
    bare: bodies(bare).map((body) => body ?? null),
  };
}

tell({
  rules, scheduling, deferral, duplicates, deliveryLimit, lockLost, competing, expiry, forwarding,
  peeking,
});
