// rhea, a JavaScript AMQP client that knows nothing of Service Bus, told as one JSON line.
//
// It sends messages, pipelined; takes the first one three times, to release, to modify and
// to reject it; then receives and accepts the others through a small credit window.
import rhea from "rhea";

const [port, queue, user, password] = process.argv.slice(2);
const COUNT = 200;
const seen = { accepted: 0, received: [], counts: [], dead: null };

const connection = rhea.connect({
  host: "127.0.0.1",
  port: Number(port),
  username: user,
  password,
  reconnect: false,
});
const sender = connection.open_sender(queue);
let sent = 0;
sender.on("sendable", () => {
  while (sender.sendable() && sent < COUNT)
    sender.send({ message_id: `m-${sent}`, durable: true, body: sent++ });
});
sender.on("accepted", () => {
  if (++seen.accepted === COUNT) refuseTheFirst();
});

// One at a time: rhea writes outcomes of one burst as one range, even where they differ.
function refuseTheFirst() {
  const receiver = connection.open_receiver({ source: queue, credit_window: 0, autoaccept: false });
  receiver.add_credit(1);
  receiver.on("message", ({ message, delivery }) => {
    seen.counts.push(message.delivery_count ?? 0);
    if (seen.counts.length === 1) delivery.release();
    else if (seen.counts.length === 2)
      delivery.modified({ delivery_failed: true, undeliverable_here: false });
    else delivery.reject();
    if (seen.counts.length < 3) receiver.add_credit(1);
    else receiver.close();
  });
  receiver.on("receiver_close", acceptTheRest);
}

function acceptTheRest() {
  const receiver = connection.open_receiver({ source: queue, credit_window: 10 });
  receiver.on("message", ({ message }) => {
    if (seen.received.push(message.body) === COUNT - 1) receiver.close();
  });
  receiver.on("receiver_close", readDeadLetters);
}

function readDeadLetters() {
  const receiver = connection.open_receiver({ source: `${queue}/$deadletterqueue` });
  receiver.on("message", ({ message }) => {
    seen.dead = message.body;
    connection.close();
  });
}

connection.on("connection_close", () => console.log(JSON.stringify(seen)));
connection.on("disconnected", ({ error }) => {
  if (error) {
    console.error(error);
    process.exitCode = 1;
  }
});
