/* The few AMQP 1.0 frames that the load generator writes and reads.
 *
 * Enters: what to say. Leaves: bytes appended to a Buffer, or numbers read from a frame. It
 * shares no code with the broker, trusts what a broker that was started here sends, and
 * checks only that it stays inside the frame.
 */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPEN 0x10
#define ATTACH 0x12
#define FLOW 0x13
#define TRANSFER 0x14
#define DISPOSITION 0x15
#define DETACH 0x16
#define END 0x17
#define CLOSE 0x18
#define SASL_INIT 0x41
#define ACCEPTED 0x24
#define HEADER_BYTES 8
#define WINDOW_MAX 0x7fffffff
#define FRAME_BYTES_MAX 65536
/* What we tell the broker: it must let us hear something twice as often. */
#define IDLE_TIMEOUT_MS 60000
#define BODY_BYTES 1024
#define MAGIC 0x74776273736f616bull

typedef struct {
  uint8_t *data;
  size_t start, end, room;
} Buffer;

static uint8_t *buffer_reserve(Buffer *buffer, size_t bytes) {
  if (buffer->start == buffer->end) buffer->start = buffer->end = 0;
  if (buffer->end + bytes > buffer->room) {
    size_t used = buffer->end - buffer->start;
    if (buffer->start) memmove(buffer->data, buffer->data + buffer->start, used);
    buffer->start = 0;
    buffer->end = used;
    if (used + bytes > buffer->room) {
      buffer->room = (used + bytes) * 2;
      buffer->data = realloc(buffer->data, buffer->room);
      if (!buffer->data) abort();
    }
  }
  return buffer->data + buffer->end;
}

static void buffer_add(Buffer *buffer, const void *bytes, size_t count) {
  memcpy(buffer_reserve(buffer, count), bytes, count);
  buffer->end += count;
}

static void buffer_free(Buffer *buffer) {
  free(buffer->data);
  *buffer = (Buffer){0};
}

static void put_u32(uint8_t *at, uint32_t value) {
  value = __builtin_bswap32(value);
  memcpy(at, &value, sizeof value);
}

static uint32_t get_u32(const uint8_t *at) {
  uint32_t value;
  memcpy(&value, at, sizeof value);
  return __builtin_bswap32(value);
}

/* --- values, written into a scratch that is large enough for every performative here --- */

typedef struct {
  uint8_t data[1024];
  size_t size;
  uint32_t count;
} Fields;

static void add_raw(Fields *fields, const void *bytes, size_t size) {
  memcpy(fields->data + fields->size, bytes, size);
  fields->size += size;
}

static void add_byte(Fields *fields, uint8_t byte) {
  add_raw(fields, &byte, 1);
  fields->count++;
}

#define add_null(fields) add_byte(fields, 0x40)
#define add_bool(fields, value) add_byte(fields, (value) ? 0x41 : 0x42)

static void add_uint(Fields *fields, uint32_t value) {
  uint8_t bytes[5] = {0x70};
  put_u32(bytes + 1, value);
  add_raw(fields, bytes, sizeof bytes);
  fields->count++;
}

static void add_ubyte(Fields *fields, uint8_t value) {
  uint8_t bytes[2] = {0x50, value};
  add_raw(fields, bytes, sizeof bytes);
  fields->count++;
}

static void add_text(Fields *fields, uint8_t code, const char *text, size_t size) {
  uint8_t head[2] = {code, (uint8_t)size};
  add_raw(fields, head, sizeof head);
  add_raw(fields, text, size);
  fields->count++;
}

#define add_string(fields, text) add_text(fields, 0xa1, text, strlen(text))

static void described(Fields *into, uint8_t code, const Fields *list) {
  uint8_t head[12] = {0x00, 0x53, code, 0xd0};
  put_u32(head + 4, (uint32_t)list->size + 4);
  put_u32(head + 8, list->count);
  add_raw(into, head, sizeof head);
  add_raw(into, list->data, list->size);
  into->count++;
}

static void write_frame(Buffer *out, uint8_t kind, uint8_t code, const Fields *list) {
  Fields body = {.size = 0};
  uint8_t head[HEADER_BYTES] = {0, 0, 0, 0, 2, kind, 0, 0};
  described(&body, code, list);
  put_u32(head, (uint32_t)(body.size + HEADER_BYTES));
  buffer_add(out, head, sizeof head);
  buffer_add(out, body.data, body.size);
}

static void write_empty_frame(Buffer *out) {
  buffer_add(out, "\0\0\0\x08\x02\0\0\0", HEADER_BYTES);
}

/* --- what we say --- */

/* Everything up to an attached link, in one go: the broker is known, nothing is to be asked. */
static void write_opening(Buffer *out, const char *user, const char *password, const char *queue,
                          bool sends) {
  Fields init = {.size = 0}, open = {.size = 0}, begin = {.size = 0}, attach = {.size = 0};
  Fields node = {.size = 0}, here = {.size = 0};
  char response[256];
  int size = snprintf(response, sizeof response, "%c%s%c%s", 0, user, 0, password);
  buffer_add(out, "AMQP\x03\x01\0\0", HEADER_BYTES);
  add_text(&init, 0xa3, "PLAIN", 5);
  add_text(&init, 0xa0, response, (size_t)size);
  write_frame(out, 1, SASL_INIT, &init);
  buffer_add(out, "AMQP\0\x01\0\0", HEADER_BYTES);
  add_string(&open, "soak");
  add_string(&open, "localhost");
  add_uint(&open, FRAME_BYTES_MAX);
  add_null(&open);
  add_uint(&open, IDLE_TIMEOUT_MS);
  write_frame(out, 0, OPEN, &open);
  add_null(&begin);
  add_uint(&begin, 0);
  add_uint(&begin, WINDOW_MAX);
  add_uint(&begin, WINDOW_MAX);
  write_frame(out, 0, 0x11, &begin);
  add_string(&node, queue);
  add_string(&here, "soak");
  add_string(&attach, "soak");
  add_uint(&attach, 0);
  add_bool(&attach, !sends);
  add_ubyte(&attach, 0); /* the sender sends unsettled */
  add_ubyte(&attach, 1); /* the receiver settles second: a settlement is answered */
  described(&attach, 0x28, sends ? &here : &node);
  described(&attach, 0x29, sends ? &node : &here);
  add_null(&attach);
  add_null(&attach);
  add_uint(&attach, 0);
  write_frame(out, 0, ATTACH, &attach);
}

static void write_flow(Buffer *out, uint32_t received, uint32_t credit) {
  Fields flow = {.size = 0};
  add_uint(&flow, received);
  add_uint(&flow, WINDOW_MAX);
  add_uint(&flow, 0);
  add_uint(&flow, WINDOW_MAX);
  add_uint(&flow, 0);
  add_uint(&flow, received); /* deliveries and frames count alike: a message is one frame */
  add_uint(&flow, credit);
  write_frame(out, 0, FLOW, &flow);
}

static void write_accepted(Buffer *out, uint32_t first, uint32_t last) {
  Fields disposition = {.size = 0}, none = {.size = 0};
  add_bool(&disposition, true);
  add_uint(&disposition, first);
  add_uint(&disposition, last);
  add_bool(&disposition, false);
  described(&disposition, ACCEPTED, &none);
  write_frame(out, 0, DISPOSITION, &disposition);
}

/* What a body begins with. Only this program reads it again. */
typedef struct {
  uint64_t magic;
  uint64_t pair;
  uint64_t number;
  uint64_t intended_ns;
} Label;

#define ID_DIGITS 16
/* Where things lie in the one message that every send repeats. */
#define AT_DELIVERY 16
#define AT_TAG 22
#define AT_ID 49
#define AT_BODY (AT_ID + ID_DIGITS + 8)
#define MESSAGE_BYTES (AT_BODY + BODY_BYTES)

static uint8_t message[MESSAGE_BYTES];

static void prepare_message(void) {
  static const uint8_t head[] = {
      0, 0, 0, 0, 2, 0, 0, 0,                        /* frame */
      0, 0x53, TRANSFER, 0xc0, 15, 5, 0x43,          /* handle 0 */
      0x70, 0, 0, 0, 0, 0xa0, 4, 0, 0, 0, 0,         /* delivery-id, tag */
      0x43, 0x42,                                    /* format 0, unsettled */
      0, 0x53, 0x70, 0xd0, 0, 0, 0, 5, 0, 0, 0, 1, 0x41, /* durable */
      0, 0x53, 0x73, 0xc0, ID_DIGITS + 3, 1, 0xa1, ID_DIGITS,
  };
  static const uint8_t data[] = {0, 0x53, 0x75, 0xb0};
  _Static_assert(sizeof head == AT_ID, "the template's places");
  memcpy(message, head, sizeof head);
  put_u32(message, MESSAGE_BYTES);
  memcpy(message + AT_ID + ID_DIGITS, data, sizeof data);
  put_u32(message + AT_ID + ID_DIGITS + 4, BODY_BYTES);
  memset(message + AT_BODY, 'x', BODY_BYTES);
}

static void write_message(Buffer *out, uint32_t delivery_id, const Label *label) {
  uint8_t *at = buffer_reserve(out, MESSAGE_BYTES);
  memcpy(at, message, MESSAGE_BYTES);
  put_u32(at + AT_DELIVERY, delivery_id);
  put_u32(at + AT_TAG, delivery_id);
  uint64_t id = label->pair * 1000000000000ull + label->number;
  for (uint8_t *digit = at + AT_ID + ID_DIGITS; digit-- > at + AT_ID; id /= 10)
    *digit = (uint8_t)('0' + id % 10);
  memcpy(at + AT_BODY, label, sizeof *label);
  out->end += MESSAGE_BYTES;
}

/* --- what we hear --- */

/* The first fields of a performative that are numbers or truths; others stop the reading. */
static int read_numbers(const uint8_t *body, const uint8_t *end, uint32_t *numbers, int count) {
  const uint8_t *at = body + 3; /* past the descriptor, a small ulong */
  int present = *at == 0xc0 ? at[2] : *at == 0xd0 ? (int)get_u32(at + 5) : 0;
  at += *at == 0xc0 ? 3 : 9;
  int found = 0;
  for (; found < count && found < present && at < end; found++) {
    uint8_t code = *at++;
    numbers[found] = 0;
    if (code == 0x70) {
      numbers[found] = get_u32(at);
      at += 4;
    } else if (code == 0x52 || code == 0x50) {
      numbers[found] = *at++;
    } else if (code == 0x41) {
      numbers[found] = 1;
    } else if (code != 0x40 && code != 0x42 && code != 0x43) {
      break;
    }
  }
  for (int i = found; i < count; i++) numbers[i] = 0;
  return found;
}

static bool has_text(const uint8_t *body, const uint8_t *end, const char *text) {
  return memmem(body, (size_t)(end - body), text, strlen(text)) != NULL;
}

#endif
