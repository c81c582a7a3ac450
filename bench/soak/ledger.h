/* What was sent, acknowledged, delivered and settled, one byte a message; and latencies.
 *
 * Enters: the number of a message and what happened to it. Leaves: whether that may be. A byte
 * holds how often a message was sent and how often its settlement was answered, so that a copy
 * of a send that nobody answered is told from a message that came back.
 */
#ifndef LEDGER_H
#define LEDGER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SENDS 0x07 /* times sent; 7 stands for many */
#define SETTLED_ONE 0x08
#define SETTLED 0x38 /* times settled, with the broker's answer */
#define ACKNOWLEDGED 0x40
#define DELIVERED 0x80

typedef struct {
  uint8_t *marks;
  uint64_t count, room;
} Ledger;

typedef enum { FIRST, AGAIN_UNSETTLED, AGAIN_RESENT, AGAIN_SETTLED } Arrival;

static uint64_t ledger_issue(Ledger *ledger) {
  if (ledger->count == ledger->room) {
    uint64_t room = ledger->room ? ledger->room * 2 : 65536;
    ledger->marks = realloc(ledger->marks, room);
    if (!ledger->marks) abort();
    memset(ledger->marks + ledger->room, 0, room - ledger->room);
    ledger->room = room;
  }
  return ledger->count++;
}

static void ledger_sent(Ledger *ledger, uint64_t number) {
  if ((ledger->marks[number] & SENDS) < SENDS) ledger->marks[number]++;
}

/* It was refused: that attempt made no message. */
static void ledger_refused(Ledger *ledger, uint64_t number) {
  uint8_t sends = ledger->marks[number] & SENDS;
  if (sends && sends < SENDS) ledger->marks[number]--;
}

static Arrival ledger_arrived(Ledger *ledger, uint64_t number) {
  uint8_t mark = ledger->marks[number];
  ledger->marks[number] |= DELIVERED;
  if (!(mark & DELIVERED)) return FIRST;
  uint8_t sends = mark & SENDS, settled = (mark & SETTLED) >> 3;
  if (!settled) return AGAIN_UNSETTLED;
  return sends == SENDS || settled < sends ? AGAIN_RESENT : AGAIN_SETTLED;
}

static void ledger_settled(Ledger *ledger, uint64_t number) {
  if ((ledger->marks[number] & SETTLED) < SETTLED) ledger->marks[number] += SETTLED_ONE;
}

static uint64_t ledger_lost(const Ledger *ledger) {
  uint64_t lost = 0;
  for (uint64_t i = 0; i < ledger->count; i++)
    lost += (ledger->marks[i] & (ACKNOWLEDGED | DELIVERED)) == ACKNOWLEDGED;
  return lost;
}

/* --- latencies: 64 steps in each power of two, an error of 1.6 % --- */

#define STEPS 64
#define BUCKETS 2304

typedef struct {
  uint64_t counts[BUCKETS];
} Histogram;

static void histogram_add(Histogram *histogram, uint64_t from_ns, uint64_t to_ns) {
  uint64_t us = to_ns > from_ns ? (to_ns - from_ns) / 1000 : 0;
  unsigned shift = us < 2 * STEPS ? 0 : 57u - (unsigned)__builtin_clzll(us);
  uint64_t bucket = shift * STEPS + (us >> shift);
  histogram->counts[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
}

#endif
