#include "wire/message.h"

#include <string.h>

wire_string wire_text(const char *s) {
  size_t n = s ? strlen(s) : 0;
  return (wire_string){s, (uint32_t)(n > WIRE_STRING_MAX ? WIRE_STRING_MAX : n)};
}

wire_brief wire_brief_of(wire_string s) {
  wire_brief b = {{0}};
  uint32_t n = s.size < WIRE_BRIEF_MAX ? s.size : WIRE_BRIEF_MAX;
  for (uint32_t i = 0; i < n; i++) b.text[i] = s.data[i] >= ' ' && s.data[i] <= '~' ? s.data[i] : '?';
  return b;
}

bool wire_id_equal(wire_id a, wire_id b) {
  return memcmp(a.bytes, b.bytes, 16) == 0;
}

const char *msg_name(msg_type type) {
  switch (type) {
#define MSG_CASE(name, number)                                                                               \
  case number:                                                                                               \
    return #name;
    MSG_LIST(MSG_CASE)
#undef MSG_CASE
  }
  return "?";
}

/* How much of a device's name says what computes: all instruction sets ("cpu:avx2") are the same processors.
 */
static size_t computing_size(wire_string device) {
  static const char processors[] = "cpu:";
  size_t size = sizeof processors - 1;
  bool is_cpu = device.size >= size && memcmp(device.data, processors, size) == 0;
  return is_cpu ? size - 1 : device.size;
}

bool msg_same_device(wire_string a, wire_string b) {
  size_t size = computing_size(a);
  return size > 0 && size == computing_size(b) && memcmp(a.data, b.data, size) == 0;
}

bool msg_colocated(const msg_hello *a, const msg_hello *b) {
  bool same_host = !hash_is_zero(a->host) && hash_equal(a->host, b->host);
  return same_host && msg_same_device(a->device, b->device);
}

sampler_options msg_sampling(const msg_options *o) {
  return (sampler_options){o->temperature,    o->top_k, o->top_p, o->min_p,
                           o->repeat_penalty, o->seed,  o->choice};
}

static int check_stops(const msg_options *o, err *e) {
  if (o->stop_count < 0 || o->stop_count > WIRE_STOPS_MAX)
    return err_set(e, ERR_LIMIT, "a request has 0 to %d stop tokens, not %d", WIRE_STOPS_MAX, o->stop_count);
  for (int32_t i = 0; i < o->stop_count; i++)
    if (o->stops[i] < 0) return err_set(e, ERR_ARG, "stop token %d is not a token", o->stops[i]);
  return ERR_OK;
}

int msg_options_check(const msg_options *o, err *e) {
  sampler_options sampling = msg_sampling(o);
  int rc = sampler_check(&sampling, e);
  if (rc != ERR_OK) return rc;
  if (o->max_tokens < 1) return err_set(e, ERR_ARG, "max_tokens must be at least 1");
  if (o->context < 0 || o->context > WIRE_CONTEXT_MAX)
    return err_set(e, ERR_ARG, "a context is 0 (the target's own) to %d tokens, not %d", WIRE_CONTEXT_MAX,
                   o->context);
  if (o->budget < 0 || o->budget > WIRE_BUDGET_MAX)
    return err_set(e, ERR_ARG, "a node budget is 0 to %d, not %d", WIRE_BUDGET_MAX, o->budget);
  if (o->selfcheck < 0)
    return err_set(e, ERR_ARG, "selfcheck is 0 (off) or a number of rounds, not %d", o->selfcheck);
  return check_stops(o, e);
}

const char *msg_open_misfit(const msg_open *o, const prefix *held) {
  hash16 h = {{0}};
  if (o->base_length > 0) {
    if (!held || held->seed != o->hash_seed || !prefix_has(held, o->base_length, o->base_hash))
      return "the base is not held here";
    h = o->base_hash;
  }
  for (int32_t i = 0; i < o->token_count; i++) h = hash_next(h, o->hash_seed, o->tokens[i]);
  return hash_equal(h, o->hash) ? NULL : "the tokens do not give the hash that came with them";
}

bool msg_token_accepted(const msg_tokens *t, int32_t i) {
  return t->accepted_size > 0 && (t->accepted[i / 8] >> (i % 8) & 1);
}

void msg_pack_accepted(const uint8_t *flags, int32_t count, uint8_t *bits) {
  memset(bits, 0, MSG_ACCEPTED_SIZE((size_t)count));
  for (int32_t i = 0; i < count; i++) bits[i / 8] |= (uint8_t)(flags[i] << (i % 8));
}
