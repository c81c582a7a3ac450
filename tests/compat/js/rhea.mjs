// rhea, a JavaScript AMQP client that knows nothing of Service Bus, told as one JSON line.
//
// It sends messages, pipelined, and receives them with a small credit window: the first is
// released, then modified, then rejected; every other one is accepted.
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
  if (++seen.accepted === COUNT) receive();
});

function receive() {
  const receiver = connection.open_receiver({
    source: queue,
    credit_window: 10,
    autoaccept: false,
  });
  receiver.on("message", ({ message, delivery }) => {
    if (message.body === 0) {
      seen.counts.push(message.delivery_count ?? 0);
      if (seen.counts.length === 1) return delivery.release();
      if (seen.counts.length === 2)
        return delivery.modified({ delivery_failed: true, undeliverable_here: false });
      return delivery.reject();
    }
    delivery.accept();
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
