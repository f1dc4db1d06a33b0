#include "wire/actions.h"

#include "wire/fields.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define ACTIONS_ARENA_MAX (256u << 20) /* bytes that one step may ask to send */
#define ACTIONS_FIRST     64
#define ACTIONS_TEXT_MAX  1024

void actions_init(actions *a) {
  *a = (actions){0};
  arena_init(&a->memory, ACTIONS_ARENA_MAX);
}

void actions_fini(actions *a) {
  arena_fini(&a->memory);
  *a = (actions){0};
}

void actions_reset(actions *a) {
  arena_reset(&a->memory);
  a->list = NULL;
  a->count = a->capacity = 0;
}

/* The list is in the arena as well, so that a burst of actions leaves nothing behind. */
static bool list_grow(actions *a) {
  int32_t capacity = a->capacity ? 2 * a->capacity : ACTIONS_FIRST;
  action *grown = arena_take(&a->memory, (size_t)capacity * sizeof *grown);
  if (!grown) return false;
  if (a->count) memcpy(grown, a->list, (size_t)a->count * sizeof *grown);
  a->list = grown;
  a->capacity = capacity;
  return true;
}

/* Out of memory loses the action, as a network would lose the message: the protocol's timers repair it. */
static void actions_add(actions *a, action fresh) {
  if (a->count == a->capacity && !list_grow(a))
    a->lost++;
  else
    a->list[a->count++] = fresh;
}

void actions_send(actions *a, peer_id peer, const msg *m) {
  const msg *copy = actions_copy(&a->memory, m);
  if (copy)
    actions_add(a, (action){.kind = ACTION_SEND, .peer = peer, .message = copy});
  else
    a->lost++;
}

static const char *actions_text(actions *a, const char *text, size_t size) {
  char *copy = arena_take(&a->memory, size + 1);
  if (!copy) return NULL;
  if (size) memcpy(copy, text, size);
  copy[size] = 0;
  return copy;
}

void actions_connect(actions *a, uint64_t tag, wire_string endpoint) {
  const char *text = actions_text(a, endpoint.data, endpoint.size);
  if (text)
    actions_add(a, (action){.kind = ACTION_CONNECT, .tag = tag, .text = text});
  else
    a->lost++;
}

void actions_disconnect(actions *a, peer_id peer) {
  actions_add(a, (action){.kind = ACTION_DISCONNECT, .peer = peer});
}

void actions_log(actions *a, int level, const char *format, ...) {
  char line[ACTIONS_TEXT_MAX];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  const char *text = actions_text(a, line, strlen(line));
  if (text)
    actions_add(a, (action){.kind = ACTION_LOG, .level = level, .text = text});
  else
    a->lost++;
}

void actions_exit(actions *a, int code) {
  actions_add(a, (action){.kind = ACTION_EXIT, .code = code});
}

/* --- deep copy, by the tables of fields.c: what is a pointer in a message stands there --- */

/* The pointer at base + offset gets a copy of `size` bytes; NULL stays NULL. */
static bool copy_bytes(arena *a, char *base, size_t offset, size_t size) {
  void *data;
  memcpy(&data, base + offset, sizeof data);
  if (!data) return true;
  data = arena_copy(a, data, size);
  memcpy(base + offset, &data, sizeof data);
  return data != NULL;
}

static bool copy_group(arena *a, const field_group *group, char *base);

static bool copy_field(arena *a, const field *f, char *base) {
  if (f->kind == FIELD_GROUP) return copy_group(a, f->group, base + f->offset);
  if (f->kind == FIELD_STR) {
    uint32_t size = ((const wire_string *)(base + f->offset))->size;
    return copy_bytes(a, base, f->offset + offsetof(wire_string, data), size);
  }
  if (!f->list && f->kind != FIELD_BLOB) return true;
  uint32_t count = *(const uint32_t *)(base + f->count_offset);
  return copy_bytes(a, base, f->offset, f->list ? count * field_element_size(f->kind) : count);
}

static bool copy_group(arena *a, const field_group *group, char *base) {
  for (uint32_t i = 0; i < group->count; i++)
    if (!copy_field(a, &group->list[i], base)) return false;
  return true;
}

const msg *actions_copy(arena *a, const msg *m) {
  const fields_shape *shape = fields_shape_of(m->type);
  msg *copy = shape ? arena_copy(a, m, sizeof *m) : NULL;
  return copy && copy_group(a, &shape->fields, (char *)&copy->u) ? copy : NULL;
}
