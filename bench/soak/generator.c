/* The soak's load: pairs of a sender and a receiver on a queue of their own, idle connections,
 * and a ledger of it all. One thread, one epoll loop.
 *
 * Enters: `generator PORT USER PAIRS IDLE QUEUES`, the password in BENCH_PASSWORD, then commands,
 * a line each (see `on_command`). Leaves: one JSON line for each `report` and `check`. Connections
 * that break are made again, and what was not acknowledged is sent again. It shares the machine
 * with the broker and must stay cheap: a message is a copy of one template.
 */
#include "ledger.h"
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000ull
#define SECOND 1000000000ull
#define FLIGHT 4096 /* more than a link's credit ever is */
#define RECEIVER_CREDIT 500
#define OUT_BYTES_MAX (256u << 10)
#define READ_BYTES (1u << 20)
#define SCAN_NS (50 * MS)
#define RETRY_NS (200 * MS)
#define CONNECTS_PER_SCAN 50
#define DIALING_MAX 400 /* clients come in a herd after a restart, but not all in one moment */
#define HANDSHAKE_NS (30 * SECOND)
#define BUSY_WAIT_NS SECOND
#define SILENCE_NS (2ull * IDLE_TIMEOUT_MS * MS)

typedef struct {
  uint64_t number, intended_ns, sent_ns;
  bool open;
} Flight;

typedef struct Pair Pair;

typedef struct {
  int fd, queue;
  bool sends, up, blocked, is_dirty;
  Pair *pair; /* NULL for an idle connection */
  Buffer in, out;
  uint64_t dialed_ns, heard_ns, spoke_ns, retry_ns;
  uint32_t next_id;      /* of a delivery, ours or the broker's */
  uint32_t credit_limit; /* senders: deliveries that the broker allows so far */
  uint32_t settle_from;  /* receivers: first delivery that is not settled yet */
  uint32_t credit_at;    /* receivers: deliveries when credit was last given */
} Connection;

struct Pair {
  uint64_t index, start_ns, scheduled, delivered, busy_until_ns;
  uint64_t in_flight, retry_count, retry_from;
  double interval_ns; /* 0: nothing is to be sent by the clock */
  Connection *sender, *receiver;
  Ledger ledger;
  Flight flight[FLIGHT], retry[FLIGHT];
  uint64_t locked[FLIGHT]; /* numbers of what the receiver holds, by delivery-id */
};

typedef enum { RECEIVED, ANSWERED, ACCEPTED_IN, SIDE_RECEIVED, SIDE_ANSWERED, KINDS } Kind;
static const char *kind_names[] = {"received", "answered", "accepted_in", "side_received",
                                   "side_answered"};

static struct {
  uint64_t sent, resent, acknowledged, delivered, settled, busy, refused, settle_refused;
  uint64_t again_unsettled, again_resent, again_settled, unknown;
  uint64_t broken, detached, silent, no_credit, no_room;
} counts;

static Histogram latencies[KINDS];
static const char *user, *password;
static int port, poller, pair_count, connection_count;
static Pair *pairs; /* the last one is the well-behaved client on the side */
static Connection *connections;
static uint64_t window; /* closed loop: messages under way in each pair; 0: open loop */
static uint64_t now;
static int cut_from;
static Connection **dirty;
static int dirty_count;

static uint64_t clock_ns(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}

static void touch(Connection *c) {
  if (c->is_dirty) return;
  c->is_dirty = true;
  dirty[dirty_count++] = c;
}

static bool is_side(const Pair *pair) { return pair == &pairs[pair_count]; }

/* --- connections --- */

static void watch(Connection *c, int how) {
  struct epoll_event event = {.events = EPOLLIN | (c->blocked ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(poller, how, c->fd, &event);
}

/* What nobody answered is sent again, in its order and with the time it was meant for. */
static void keep_for_retry(Pair *pair, Flight *flight) {
  pair->retry[(pair->retry_from + pair->retry_count++) % FLIGHT] = *flight;
  flight->open = false;
  pair->in_flight--;
}

static void hang_up(Connection *c, bool reset) {
  struct linger at_once = {.l_onoff = 1, .l_linger = 0};
  if (reset) setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close(c->fd);
  c->fd = -1;
  if (c->pair && c->sends)
    for (uint32_t id = c->next_id - FLIGHT; id != c->next_id; id++)
      if (c->pair->flight[id % FLIGHT].open) keep_for_retry(c->pair, &c->pair->flight[id % FLIGHT]);
  counts.broken += c->up;
  c->up = c->blocked = false;
  buffer_free(&c->in);
  buffer_free(&c->out);
  c->next_id = c->credit_limit = c->settle_from = c->credit_at = 0;
  c->retry_ns = now + RETRY_NS;
}

static void dial(Connection *c) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  char queue[16];
  int on = 1;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  c->dialed_ns = c->heard_ns = c->spoke_ns = now;
  snprintf(queue, sizeof queue, "q%05d", c->queue);
  write_opening(&c->out, user, password, queue, c->sends);
  if (connect(c->fd, (struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS) {
    hang_up(c, false);
    return;
  }
  c->blocked = true; /* written once the connection is there */
  watch(c, EPOLL_CTL_ADD);
}

static void flush(Connection *c) {
  while (c->out.start < c->out.end) {
    ssize_t put = send(c->fd, c->out.data + c->out.start, c->out.end - c->out.start, MSG_NOSIGNAL);
    if (put < 0) {
      if (errno != EAGAIN && errno != EINTR) hang_up(c, false);
      else if (!c->blocked) c->blocked = true, watch(c, EPOLL_CTL_MOD);
      return;
    }
    c->spoke_ns = now;
    c->out.start += (size_t)put;
  }
  if (c->blocked) c->blocked = false, watch(c, EPOLL_CTL_MOD);
}

/* --- sending --- */

static uint64_t due(const Pair *pair) {
  if (pair->interval_ns <= 0 || now < pair->start_ns) return 0;
  return (uint64_t)((double)(now - pair->start_ns) / pair->interval_ns) + 1;
}

/* The next message to send, and when it was meant to leave; false when there is none. */
static bool next_message(Pair *pair, Flight *next) {
  if (pair->retry_count) {
    *next = pair->retry[pair->retry_from];
    pair->retry_from = (pair->retry_from + 1) % FLIGHT;
    pair->retry_count--;
    counts.resent++;
    return true;
  }
  if (window && !is_side(pair)) {
    if (pair->ledger.count - pair->delivered >= window) return false;
    next->intended_ns = now;
  } else {
    if (pair->scheduled >= due(pair)) return false;
    next->intended_ns =
        pair->start_ns + (uint64_t)((double)pair->scheduled++ * pair->interval_ns);
  }
  next->number = ledger_issue(&pair->ledger);
  return true;
}

static bool has_room(Connection *c) {
  if (c->next_id >= c->credit_limit || c->pair->in_flight + c->pair->retry_count >= FLIGHT - 1) {
    counts.no_credit++;
    return false;
  }
  if (c->out.end - c->out.start < OUT_BYTES_MAX) return true;
  counts.no_room++;
  return false;
}

static void send_what_is_due(Pair *pair) {
  Connection *c = pair->sender;
  Flight next = {.open = true};
  if (!c->up || now < pair->busy_until_ns) return;
  while (has_room(c) && next_message(pair, &next)) {
    Label label = {MAGIC, pair->index, next.number, next.intended_ns};
    next.sent_ns = now;
    next.open = true;
    ledger_sent(&pair->ledger, next.number);
    pair->flight[c->next_id % FLIGHT] = next;
    pair->in_flight++;
    write_message(&c->out, c->next_id++, &label);
    counts.sent++;
    touch(c);
  }
}

static void on_answer(Connection *c, uint32_t id, bool accepted, bool busy) {
  Pair *pair = c->pair;
  Flight *flight = &pair->flight[id % FLIGHT];
  if (!flight->open) return;
  if (!accepted) {
    ledger_refused(&pair->ledger, flight->number);
    keep_for_retry(pair, flight);
    pair->busy_until_ns = now + BUSY_WAIT_NS;
    if (busy) counts.busy++;
    else counts.refused++;
    return;
  }
  flight->open = false;
  pair->in_flight--;
  pair->ledger.marks[flight->number] |= ACKNOWLEDGED;
  counts.acknowledged++;
  if (is_side(pair)) {
    histogram_add(&latencies[SIDE_ANSWERED], flight->intended_ns, now);
  } else {
    histogram_add(&latencies[ANSWERED], flight->intended_ns, now);
    histogram_add(&latencies[ACCEPTED_IN], flight->sent_ns, now);
  }
}

/* --- receiving --- */

static void on_message(Connection *c, const uint8_t *body, const uint8_t *end) {
  Label label;
  uint32_t numbers[2];
  Pair *pair = c->pair;
  read_numbers(body, end, numbers, 2);
  memcpy(&label, end - BODY_BYTES, sizeof label);
  c->next_id = numbers[1] + 1;
  if (label.magic != MAGIC || label.pair != pair->index || label.number >= pair->ledger.count) {
    counts.unknown++;
    return;
  }
  pair->locked[numbers[1] % FLIGHT] = label.number;
  switch (ledger_arrived(&pair->ledger, label.number)) {
    case FIRST:
      pair->delivered++;
      counts.delivered++;
      histogram_add(&latencies[is_side(pair) ? SIDE_RECEIVED : RECEIVED], label.intended_ns, now);
      break;
    case AGAIN_UNSETTLED: counts.again_unsettled++; break;
    case AGAIN_RESENT: counts.again_resent++; break;
    case AGAIN_SETTLED: counts.again_settled++; break;
  }
}

static void settle_and_ask_for_more(Connection *c) {
  if (c->next_id == c->settle_from) return;
  write_accepted(&c->out, c->settle_from, c->next_id - 1);
  c->settle_from = c->next_id;
  if (c->next_id - c->credit_at >= RECEIVER_CREDIT / 2) {
    c->credit_at = c->next_id;
    write_flow(&c->out, c->next_id, RECEIVER_CREDIT);
  }
  touch(c);
}

/* --- frames --- */

static void on_disposition(Connection *c, const uint8_t *body, const uint8_t *end) {
  uint32_t numbers[4];
  int found = read_numbers(body, end, numbers, 4);
  bool accepted = has_text(body, end, "\x53\x24"), busy = has_text(body, end, "server-busy");
  uint32_t last = found > 2 ? numbers[2] : numbers[1];
  for (uint32_t id = numbers[1]; id != last + 1; id++) {
    if (c->sends) {
      on_answer(c, id, accepted, busy);
    } else if (accepted) {
      ledger_settled(&c->pair->ledger, c->pair->locked[id % FLIGHT]);
      counts.settled++;
    } else {
      counts.settle_refused++;
    }
  }
}

static void on_frame(Connection *c, const uint8_t *body, const uint8_t *end) {
  uint32_t numbers[7];
  switch (body[2]) {
    case ATTACH:
      c->up = true;
      if (!c->sends) write_flow(&c->out, 0, RECEIVER_CREDIT), touch(c);
      break;
    case FLOW:
      if (read_numbers(body, end, numbers, 7) == 7) c->credit_limit = numbers[5] + numbers[6];
      break;
    case TRANSFER:
      if (c->pair && !c->sends && end - body > BODY_BYTES) on_message(c, body, end);
      else counts.unknown++;
      break;
    case DISPOSITION:
      if (c->pair) on_disposition(c, body, end);
      break;
    case DETACH:
    case END:
    case CLOSE:
      counts.detached++;
      hang_up(c, false);
      break;
    default:
      break;
  }
}

static void on_bytes(Connection *c, const uint8_t *data, size_t size) {
  const uint8_t *at = data, *end = data + size;
  while (c->fd >= 0 && end - at >= HEADER_BYTES) {
    size_t length = memcmp(at, "AMQP", 4) ? get_u32(at) : HEADER_BYTES;
    if (length < HEADER_BYTES || length > FRAME_BYTES_MAX) {
      counts.unknown++;
      hang_up(c, false);
      return;
    }
    if ((size_t)(end - at) < length) break;
    if (length > HEADER_BYTES && at[5] == 0) on_frame(c, at + HEADER_BYTES, at + length);
    at += length;
  }
  if (c->fd < 0) return;
  if (at < end) buffer_add(&c->in, at, (size_t)(end - at));
  if (c->pair && !c->sends) settle_and_ask_for_more(c);
}

static void read_from(Connection *c) {
  static uint8_t bytes[FRAME_BYTES_MAX + READ_BYTES];
  size_t kept = c->in.end - c->in.start;
  ssize_t got = recv(c->fd, bytes + kept, READ_BYTES, 0);
  if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) hang_up(c, false);
  if (got <= 0) return;
  if (kept) memcpy(bytes, c->in.data + c->in.start, kept);
  c->in.start = c->in.end = 0;
  c->heard_ns = now;
  on_bytes(c, bytes, kept + (size_t)got);
}

/* --- now and then --- */

static void scan_connections(void) {
  int dials = CONNECTS_PER_SCAN, dialing = 0;
  for (int i = 0; i < connection_count; i++)
    dialing += connections[i].fd >= 0 && !connections[i].up;
  if (dials > DIALING_MAX - dialing) dials = DIALING_MAX - dialing;
  for (int i = 0; i < connection_count; i++) {
    Connection *c = &connections[i];
    if (c->fd < 0) {
      if (now >= c->retry_ns && dials-- > 0) dial(c);
    } else if (!c->up) {
      if (now - c->dialed_ns > HANDSHAKE_NS) hang_up(c, false);
    } else if (now - c->heard_ns > SILENCE_NS) {
      counts.silent++;
      hang_up(c, false);
    } else if (now - c->spoke_ns > IDLE_TIMEOUT_MS * MS) {
      write_empty_frame(&c->out);
      touch(c);
    }
  }
}

static void cut(int count) {
  for (; count > 0; count--) {
    Connection *c = &connections[cut_from % connection_count];
    /* A stride that meets senders, receivers and idle ones alike, and in the end all. */
    cut_from += 11;
    if (c->fd >= 0) hang_up(c, true);
  }
}

static void schedule(Pair *pair, double per_second, double offset) {
  pair->interval_ns = per_second > 0 ? 1e9 / per_second : 0;
  pair->scheduled = 0;
  pair->start_ns = now + (uint64_t)(offset * pair->interval_ns);
}

static void report(void) {
  uint64_t backlog = 0, unanswered = 0, up = 0, under_way = 0;
  for (int i = 0; i < connection_count; i++) up += connections[i].up;
  for (int i = 0; i <= pair_count; i++) {
    uint64_t wanted = due(&pairs[i]);
    if (!is_side(&pairs[i])) backlog += wanted > pairs[i].scheduled ? wanted - pairs[i].scheduled : 0;
    unanswered += pairs[i].in_flight + pairs[i].retry_count;
    under_way += pairs[i].ledger.count - pairs[i].delivered;
  }
#define FIELD(name) printf("\"" #name "\": %llu, ", (unsigned long long)counts.name)
  printf("{");
  FIELD(sent), FIELD(resent), FIELD(acknowledged), FIELD(delivered), FIELD(settled), FIELD(busy);
  FIELD(refused), FIELD(settle_refused), FIELD(again_unsettled), FIELD(again_resent);
  FIELD(again_settled), FIELD(unknown), FIELD(broken), FIELD(detached), FIELD(silent);
  FIELD(no_credit), FIELD(no_room);
  printf("\"up\": %llu, \"backlog\": %llu, \"unanswered\": %llu, \"under_way\": %llu, ",
         (unsigned long long)up, (unsigned long long)backlog, (unsigned long long)unanswered,
         (unsigned long long)under_way);
  printf("\"cpu_seconds\": %.3f, \"latencies\": {", (double)clock_ns(CLOCK_PROCESS_CPUTIME_ID) / 1e9);
  for (int kind = 0; kind < KINDS; kind++) {
    const char *comma = "";
    printf("%s\"%s\": [", kind ? ", " : "", kind_names[kind]);
    for (int i = 0; i < BUCKETS; i++)
      if (latencies[kind].counts[i]) {
        printf("%s[%d, %llu]", comma, i, (unsigned long long)latencies[kind].counts[i]);
        comma = ", ";
      }
    printf("]");
  }
  printf("}}\n");
  memset(latencies, 0, sizeof latencies);
}

static void check(void) {
  uint64_t issued = 0, lost = 0;
  for (int i = 0; i <= pair_count; i++) {
    issued += pairs[i].ledger.count;
    lost += ledger_lost(&pairs[i].ledger);
  }
  printf("{\"issued\": %llu, \"lost\": %llu}\n", (unsigned long long)issued,
         (unsigned long long)lost);
}

/* `closed W` and `open RATE` say how the pairs send, `side RATE` how the one on the side does;
 * rate 0 stops it. `cut N` resets N connections. */
static void on_command(const char *line) {
  double value = strchr(line, ' ') ? atof(strchr(line, ' ')) : 0;
  if (!strncmp(line, "closed", 6) || !strncmp(line, "open", 4)) {
    window = *line == 'c' ? (uint64_t)value : 0;
    for (int i = 0; i < pair_count; i++)
      schedule(&pairs[i], *line == 'o' ? value / pair_count : 0, (double)i / pair_count);
  } else if (!strncmp(line, "side", 4)) {
    schedule(&pairs[pair_count], value, 0);
  } else if (!strncmp(line, "cut", 3)) {
    cut((int)value);
  } else if (!strncmp(line, "report", 6)) {
    report();
  } else if (!strncmp(line, "check", 5)) {
    check();
  }
  fflush(stdout);
}

static void read_commands(void) {
  static Buffer lines;
  ssize_t got = read(0, buffer_reserve(&lines, 4096), 4095);
  if (got <= 0) exit(0); /* whoever started us is gone */
  lines.end += (size_t)got;
  uint8_t *end;
  while ((end = memchr(lines.data + lines.start, '\n', lines.end - lines.start))) {
    *end = 0;
    on_command((const char *)lines.data + lines.start);
    lines.start = (size_t)(end + 1 - lines.data);
  }
}

static void run(void) {
  struct epoll_event events[512];
  uint64_t scanned = 0;
  for (;;) {
    int count = epoll_wait(poller, events, 512, 1);
    now = clock_ns(CLOCK_MONOTONIC);
    for (int i = 0; i < count; i++) {
      Connection *c = events[i].data.ptr;
      if (!c) {
        read_commands();
        continue;
      }
      if (c->fd >= 0 && events[i].events & EPOLLOUT) touch(c);
      if (c->fd >= 0 && events[i].events & ~(uint32_t)EPOLLOUT) read_from(c);
    }
    if (now - scanned > SCAN_NS) scanned = now, scan_connections();
    now = clock_ns(CLOCK_MONOTONIC);
    for (int i = 0; i <= pair_count; i++) send_what_is_due(&pairs[i]);
    for (int i = 0; i < dirty_count; i++) {
      dirty[i]->is_dirty = false;
      if (dirty[i]->fd >= 0) flush(dirty[i]);
    }
    dirty_count = 0;
  }
}

static void *zeroed(size_t count, size_t bytes) {
  void *memory = calloc(count, bytes);
  if (!memory) abort();
  return memory;
}

int main(int argc, char **argv) {
  if (argc != 6) return fprintf(stderr, "generator PORT USER PAIRS IDLE QUEUES\n"), 2;
  port = atoi(argv[1]);
  user = argv[2];
  password = getenv("BENCH_PASSWORD"); /* not an argument: `ps` shows those */
  pair_count = atoi(argv[3]);
  int idle = atoi(argv[4]), queues = atoi(argv[5]), taken = pair_count + 1;
  connection_count = 2 * taken + idle;
  pairs = zeroed((size_t)taken, sizeof *pairs);
  connections = zeroed((size_t)connection_count, sizeof *connections);
  dirty = zeroed((size_t)connection_count, sizeof *dirty);
  for (int i = 0; i < connection_count; i++) {
    Connection *c = &connections[i];
    *c = (Connection){.fd = -1, .sends = i % 2 == 0, .queue = i / 2};
    if (i < 2 * taken) {
      c->pair = &pairs[i / 2];
      c->pair->index = (uint64_t)i / 2;
      *(c->sends ? &c->pair->sender : &c->pair->receiver) = c;
    } else {
      c->queue = taken + (int)((long)(i - 2 * taken) * (queues - taken) / idle);
    }
  }
  poller = epoll_create1(0);
  struct epoll_event commands = {.events = EPOLLIN, .data.ptr = NULL};
  epoll_ctl(poller, EPOLL_CTL_ADD, 0, &commands);
  prepare_message();
  run();
}
