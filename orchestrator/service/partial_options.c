#include "orchestrator/service/partial_options.h"

#include <math.h>
#include <stddef.h>

enum { ENABLE, LOSSY, NUMBERS, FIELDS = 9 };

typedef struct partial_field {
  const char *name;
  int32_t low, high; /* of a number, */
  size_t offset;     /* in msg_partial */
} partial_field;

static const partial_field fields[FIELDS] = {
    {"enable_specpv", 0, 0, 0},
    {"specpv_lossy", 0, 0, 0},
    {"specpv_block_size", WIRE_PARTIAL_UNIT, WIRE_PARTIAL_BLOCK_MAX, offsetof(msg_partial, block)},
    {"specpv_n_sink_blocks", 0, WIRE_PARTIAL_BLOCKS_MAX, offsetof(msg_partial, sink)},
    {"specpv_n_retrieval_blocks", 0, WIRE_PARTIAL_BLOCKS_MAX, offsetof(msg_partial, retrieval)},
    {"specpv_n_window_blocks", 1, WIRE_PARTIAL_BLOCKS_MAX, offsetof(msg_partial, window)},
    {"specpv_n_spec_tokens_buf", 2, WIRE_PARTIAL_BUFFER_MAX, offsetof(msg_partial, buffer)},
    {"specpv_partial_threshold", 0, WIRE_CONTEXT_MAX, offsetof(msg_partial, threshold)},
    {"specpv_full_refresh_interval", 1, WIRE_PARTIAL_REFRESH_MAX, offsetof(msg_partial, refresh)}};

typedef struct reading {
  const json_t *object;
  char quote;
  const char *name; /* the field in hand */
  err *e;
} reading;

static const json_t *take(reading *d, int field) {
  d->name = fields[field].name;
  const json_t *value = json_object_get(d->object, d->name);
  return json_is_null(value) ? NULL : value;
}

/* The first field that is given, or NULL. */
static const char *first_given(reading *d) {
  for (int i = 0; i < FIELDS; i++)
    if (take(d, i)) return d->name;
  return NULL;
}

static int refuse(const reading *d, const char *why) {
  return err_set(d->e, ERR_ARG, "%c%s%c %s", d->quote, d->name, d->quote, why);
}

static int read_bool(reading *d, int field, bool *out) {
  const json_t *value = take(d, field);
  if (!value) return ERR_OK;
  if (!json_is_boolean(value)) return refuse(d, "must be true or false");
  *out = json_is_true(value);
  return ERR_OK;
}

static int read_numbers(reading *d, msg_partial *out) {
  for (int i = NUMBERS; i < FIELDS; i++) {
    const json_t *value = take(d, i);
    const partial_field *f = &fields[i];
    const double x = json_number_value(value); /* some clients write 5.0 */
    if (!value) continue;
    if (!json_is_number(value) || x != floor(x) || x < f->low || x > f->high)
      return err_set(d->e, ERR_ARG, "%c%s%c must be a whole number from %d to %d", d->quote, d->name,
                     d->quote, f->low, f->high);
    *(int32_t *)((char *)out + f->offset) = (int32_t)x;
  }
  return ERR_OK;
}

static int read_all(reading *d, request *r) {
  bool lossy = r->lossy, enabled = r->partial.mode != WIRE_PARTIAL_OFF;
  int rc = read_bool(d, LOSSY, &lossy);
  if (rc == ERR_OK) rc = read_numbers(d, &r->partial);
  if (rc == ERR_OK) rc = read_bool(d, ENABLE, &enabled);
  if (rc != ERR_OK) return rc;
  d->name = first_given(d);
  if (enabled && !r->partial_kv)
    return refuse(d, "is of partial KV, but this server runs without --partial-kv: leave it out");
  r->partial.mode = !enabled ? WIRE_PARTIAL_OFF : lossy ? WIRE_PARTIAL_LOSSY : WIRE_PARTIAL_EXACT;
  d->name = NULL;
  return msg_partial_check(&r->partial, d->e);
}

int partial_options_read(const json_t *object, char quote, request *r, const char **name, err *e) {
  reading d = {object, quote, NULL, e};
  const int rc = first_given(&d) ? read_all(&d, r) : ERR_OK;
  *name = rc == ERR_OK ? NULL : d.name;
  return rc;
}
