#include "orchestrator/service/partial_options.h"

#include <math.h>
#include <stddef.h>

enum { ENABLE, LOSSY, NUMBERS, FIELDS = 9 };

static const char *const names[FIELDS] = {"enable_specpv",
                                          "specpv_lossy",
                                          "specpv_block_size",
                                          "specpv_n_sink_blocks",
                                          "specpv_n_retrieval_blocks",
                                          "specpv_n_window_blocks",
                                          "specpv_n_spec_tokens_buf",
                                          "specpv_partial_threshold",
                                          "specpv_full_refresh_interval"};

static const size_t offsets[FIELDS - NUMBERS] = {
    offsetof(msg_partial, block),  offsetof(msg_partial, sink),   offsetof(msg_partial, retrieval),
    offsetof(msg_partial, window), offsetof(msg_partial, buffer), offsetof(msg_partial, threshold),
    offsetof(msg_partial, refresh)};

typedef struct reading {
  const json_t *object;
  char quote;
  const char *name; /* the field in hand */
  err *e;
} reading;

static const json_t *take(reading *d, int field) {
  d->name = names[field];
  const json_t *value = json_object_get(d->object, d->name);
  return json_is_null(value) ? NULL : value;
}

static bool any_given(reading *d) {
  bool any = false;
  for (int i = 0; i < FIELDS; i++) any |= take(d, i) != NULL;
  return any;
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
    const double x = json_number_value(value); /* some clients write 5.0 */
    if (!value) continue;
    if (!json_is_number(value) || x != floor(x) || x < 0 || x > WIRE_CONTEXT_MAX)
      return refuse(d, "must be a whole number from 0 on");
    *(int32_t *)((char *)out + offsets[i - NUMBERS]) = (int32_t)x;
  }
  return ERR_OK;
}

static int read_all(reading *d, request *r) {
  bool lossy = r->partial.mode == WIRE_PARTIAL_LOSSY, enabled = true;
  int rc = read_bool(d, LOSSY, &lossy);
  if (rc == ERR_OK) rc = read_numbers(d, &r->partial);
  if (rc == ERR_OK) rc = read_bool(d, ENABLE, &enabled);
  if (rc != ERR_OK) return rc;
  if (enabled && !r->partial_kv)
    return refuse(d, "is wanted, but this server runs without --partial-kv: leave out what is said of it");
  r->partial.mode = !enabled ? WIRE_PARTIAL_OFF : lossy ? WIRE_PARTIAL_LOSSY : WIRE_PARTIAL_EXACT;
  d->name = NULL;
  return msg_partial_check(&r->partial, d->e);
}

int partial_options_read(const json_t *object, char quote, request *r, const char **name, err *e) {
  reading d = {object, quote, NULL, e};
  const int rc = any_given(&d) ? read_all(&d, r) : ERR_OK;
  *name = rc == ERR_OK ? NULL : d.name;
  return rc;
}
