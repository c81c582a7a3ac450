/* The benchmark's client: one thread, one poll loop, no code in common with the broker.
 *
 * Enters: a mode (send, receive, both, lone) and how many messages of which size.
 * Leaves: one JSON line: what was done, how long it took, how long acknowledgements took.
 * It must stay cheaper than any broker it measures, so it encodes one message once and
 * then only writes the message id into it.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <proton/connection.h>
#include <proton/connection_driver.h>
#include <proton/delivery.h>
#include <proton/link.h>
#include <proton/message.h>
#include <proton/sasl.h>
#include <proton/session.h>
#include <proton/transport.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ID_DIGITS 20
#define STALL_MS 60000
#define FRAME_BYTES 65536

typedef struct {
  const char *mode, *port, *address, *user, *password;
  uint64_t count;
  uint32_t size, window;
} Options;

typedef struct {
  pn_connection_driver_t driver;
  pn_link_t *link;
  int fd;
  bool sends;
  bool finished;
  uint64_t started, done;
} Peer;

static Options options = {
    .port = "5672", .address = "bench", .user = "guest", .count = 1000, .size = 1024, .window = 1000};
static char *message, *message_id, *scratch;
static size_t message_bytes, scratch_bytes;
static uint64_t *sent_at_ns, *latency_ns;
static uint64_t begun_at_ns;

static void fail(const char *what, const char *why) {
  fprintf(stderr, "client: %s: %s\n", what, why ? why : "no reason given");
  exit(1);
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void *allocated(size_t bytes) {
  void *memory = calloc(1, bytes);
  if (!memory) fail("memory", strerror(errno));
  return memory;
}

/* Encodes the durable message that every send repeats; finds the place of its id. */
static void prepare_message(void) {
  char id[ID_DIGITS + 1];
  memset(id, '#', ID_DIGITS);
  id[ID_DIGITS] = 0;
  pn_message_t *template = pn_message();
  pn_message_set_durable(template, true);
  pn_data_put_string(pn_message_id(template), pn_bytes(ID_DIGITS, id));
  char *body = allocated(options.size);
  memset(body, 'x', options.size);
  pn_data_put_binary(pn_message_body(template), pn_bytes(options.size, body));
  pn_message_set_inferred(template, true); /* a data section, not an AMQP value */
  message_bytes = options.size + 256;
  message = allocated(message_bytes);
  if (pn_message_encode(template, message, &message_bytes)) fail("encode", "message too large");
  message_id = memmem(message, message_bytes, id, ID_DIGITS);
  free(body);
  pn_message_free(template);
}

static void write_id(uint64_t number) {
  for (char *digit = message_id + ID_DIGITS; digit-- > message_id; number /= 10)
    *digit = (char)('0' + number % 10);
}

static void send_what_fits(Peer *peer) {
  while (peer->started < options.count && peer->started - peer->done < options.window &&
         pn_link_credit(peer->link) > 0) {
    uint64_t number = peer->started++;
    pn_delivery_t *delivery =
        pn_delivery(peer->link, pn_dtag((const char *)&number, sizeof number));
    pn_delivery_set_context(delivery, (void *)(uintptr_t)number);
    write_id(number);
    sent_at_ns[number] = now_ns();
    pn_link_send(peer->link, message, message_bytes);
    pn_link_advance(peer->link);
  }
}

static void on_acknowledged(Peer *peer, pn_delivery_t *delivery) {
  if (!pn_delivery_updated(delivery) || !pn_delivery_remote_state(delivery)) return;
  if (pn_delivery_remote_state(delivery) != PN_ACCEPTED)
    fail("send refused", pn_condition_get_description(
                             pn_disposition_condition(pn_delivery_remote(delivery))));
  uint64_t number = (uint64_t)(uintptr_t)pn_delivery_get_context(delivery);
  latency_ns[number] = now_ns() - sent_at_ns[number];
  pn_delivery_settle(delivery);
  peer->done++;
}

static void on_received(Peer *peer, pn_delivery_t *delivery) {
  if (!pn_delivery_readable(delivery) || pn_delivery_partial(delivery)) return;
  if (peer->done == options.count) return; /* more than asked for: it goes back with the link */
  size_t bytes = pn_delivery_pending(delivery);
  if (bytes < options.size) fail("receive", "a message came back shorter than it was sent");
  if (bytes > scratch_bytes) scratch = realloc(scratch, scratch_bytes = bytes);
  pn_link_recv(peer->link, scratch, bytes);
  pn_link_advance(peer->link);
  pn_delivery_update(delivery, PN_ACCEPTED);
  pn_delivery_settle(delivery);
  peer->done++;
  uint64_t wanted = options.count - peer->done;
  if (wanted > options.window) wanted = options.window;
  int credit = pn_link_credit(peer->link);
  if ((uint64_t)credit <= wanted / 2) pn_link_flow(peer->link, (int)wanted - credit);
}

static void on_link_open(Peer *peer) {
  if (!begun_at_ns) begun_at_ns = now_ns();
  if (!peer->sends)
    pn_link_flow(peer->link,
                 (int)(options.count < options.window ? options.count : options.window));
}

static void on_event(Peer *peer, pn_event_t *event) {
  pn_condition_t *condition;
  switch (pn_event_type(event)) {
    case PN_LINK_REMOTE_OPEN:
      on_link_open(peer);
      break;
    case PN_DELIVERY:
      if (peer->sends) on_acknowledged(peer, pn_event_delivery(event));
      else on_received(peer, pn_event_delivery(event));
      break;
    case PN_LINK_REMOTE_DETACH: /* RabbitMQ answers a close with it */
    case PN_LINK_REMOTE_CLOSE:
      condition = pn_link_remote_condition(peer->link);
      if (pn_condition_is_set(condition)) fail("link closed", pn_condition_get_description(condition));
      pn_connection_close(peer->driver.connection);
      break;
    case PN_CONNECTION_REMOTE_CLOSE:
      condition = pn_connection_remote_condition(peer->driver.connection);
      if (pn_condition_is_set(condition))
        fail("connection closed", pn_condition_get_description(condition));
      peer->finished = true;
      break;
    case PN_TRANSPORT_ERROR:
      condition = pn_transport_condition(peer->driver.transport);
      fail("transport", pn_condition_get_description(condition));
      break;
    default:
      break;
  }
}

static void advance(Peer *peer) {
  for (pn_event_t *event; (event = pn_connection_driver_next_event(&peer->driver));)
    on_event(peer, event);
  if (peer->sends) send_what_fits(peer);
  /* The link first: RabbitMQ takes back what was settled right before a connection's close. */
  if (peer->done >= options.count && pn_link_state(peer->link) & PN_LOCAL_ACTIVE)
    pn_link_close(peer->link);
}

static int dial(void) {
  struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM, .ai_family = AF_INET};
  if (getaddrinfo("127.0.0.1", options.port, &hints, &found)) fail("address", options.port);
  int fd = socket(found->ai_family, SOCK_STREAM, 0), on = 1;
  if (connect(fd, found->ai_addr, found->ai_addrlen)) fail("connect", strerror(errno));
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  freeaddrinfo(found);
  return fd;
}

static void open_peer(Peer *peer, bool sends) {
  pn_connection_t *connection = pn_connection();
  peer->sends = sends;
  pn_connection_set_container(connection, sends ? "bench-sender" : "bench-receiver");
  pn_connection_set_hostname(connection, "localhost");
  pn_connection_set_user(connection, options.user);
  pn_connection_set_password(connection, options.password);
  pn_transport_t *transport = pn_transport();
  pn_transport_set_max_frame(transport, FRAME_BYTES);
  pn_sasl_allowed_mechs(pn_sasl(transport), "PLAIN");
  pn_sasl_set_allow_insecure_mechs(pn_sasl(transport), true); /* loopback, no TLS */
  if (pn_connection_driver_init(&peer->driver, connection, transport)) fail("driver", "memory");
  pn_connection_driver_bind(&peer->driver);
  pn_connection_open(connection);
  pn_session_t *session = pn_session(connection);
  pn_session_open(session);
  peer->link = sends ? pn_sender(session, "bench-sender") : pn_receiver(session, "bench-receiver");
  pn_terminus_set_address(sends ? pn_link_target(peer->link) : pn_link_source(peer->link),
                          options.address);
  pn_link_set_snd_settle_mode(peer->link, PN_SND_UNSETTLED);
  pn_link_open(peer->link);
  peer->fd = dial();
}

static void read_some(Peer *peer) {
  pn_rwbytes_t room = pn_connection_driver_read_buffer(&peer->driver);
  if (!room.size) return;
  ssize_t got = recv(peer->fd, room.start, room.size, MSG_DONTWAIT);
  if (got > 0) pn_connection_driver_read_done(&peer->driver, (size_t)got);
  else if (got == 0) pn_connection_driver_read_close(&peer->driver);
  else if (errno != EAGAIN && errno != EINTR) fail("read", strerror(errno));
}

/* Writes all it can; tells whether bytes are left that the socket did not take. */
static bool write_some(Peer *peer) {
  for (;;) {
    pn_bytes_t bytes = pn_connection_driver_write_buffer(&peer->driver);
    if (!bytes.size) return false;
    ssize_t put = send(peer->fd, bytes.start, bytes.size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (put < 0) fail("write", strerror(errno));
    pn_connection_driver_write_done(&peer->driver, (size_t)put);
  }
}

static void run(Peer *peers, int peer_count) {
  for (;;) {
    struct pollfd waits[2];
    int open_count = 0;
    for (int i = 0; i < peer_count; i++) {
      advance(&peers[i]);
      bool blocked = write_some(&peers[i]);
      open_count += !peers[i].finished;
      waits[i].fd = peers[i].finished ? -1 : peers[i].fd;
      waits[i].events = (short)(POLLIN | (blocked ? POLLOUT : 0));
      waits[i].revents = 0;
    }
    if (!open_count) return;
    if (poll(waits, (nfds_t)peer_count, STALL_MS) == 0) fail("stalled", "nothing came for 60 s");
    for (int i = 0; i < peer_count; i++)
      if (waits[i].revents & (POLLIN | POLLHUP | POLLERR)) read_some(&peers[i]);
  }
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static double percentile_ms(double share) {
  uint64_t rank = (uint64_t)(share * (double)(options.count - 1));
  return (double)latency_ns[rank] / 1e6;
}

static void report(double seconds, bool sent) {
  printf("{\"mode\": \"%s\", \"count\": %llu, \"seconds\": %.6f", options.mode,
         (unsigned long long)options.count, seconds);
  if (sent) {
    qsort(latency_ns, options.count, sizeof *latency_ns, by_value);
    printf(", \"acknowledged_ms\": {\"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f}",
           percentile_ms(0.5), percentile_ms(0.99), percentile_ms(1.0));
  }
  printf("}\n");
}

static void parse(int argc, char **argv) {
  if (argc < 2) fail("usage", "client MODE [--port --address --user --count --size --window]");
  options.mode = argv[1];
  for (int i = 2; i + 1 < argc; i += 2) {
    const char *name = argv[i], *value = argv[i + 1];
    if (!strcmp(name, "--port")) options.port = value;
    else if (!strcmp(name, "--address")) options.address = value;
    else if (!strcmp(name, "--user")) options.user = value;
    else if (!strcmp(name, "--count")) options.count = strtoull(value, NULL, 10);
    else if (!strcmp(name, "--size")) options.size = (uint32_t)strtoul(value, NULL, 10);
    else if (!strcmp(name, "--window")) options.window = (uint32_t)strtoul(value, NULL, 10);
    else fail("unknown option", name);
  }
  options.password = getenv("BENCH_PASSWORD"); /* not an argument: `ps` shows those */
  if (!strcmp(options.mode, "lone")) options.window = 1;
}

int main(int argc, char **argv) {
  parse(argc, argv);
  bool sends = strcmp(options.mode, "receive") != 0;
  bool receives = !strcmp(options.mode, "receive") || !strcmp(options.mode, "both");
  prepare_message();
  sent_at_ns = allocated(options.count * sizeof *sent_at_ns);
  latency_ns = allocated(options.count * sizeof *latency_ns);
  Peer peers[2] = {{.fd = -1}, {.fd = -1}};
  int peer_count = 0;
  if (receives) open_peer(&peers[peer_count++], false);
  if (sends) open_peer(&peers[peer_count++], true);
  run(peers, peer_count);
  report((double)(now_ns() - begun_at_ns) / 1e9, sends);
  return 0;
}
