#include "wire/message.h"

#include "common/base/min.h"
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

bool wire_ticket_older(const wire_id *a, const wire_id *b) {
  return memcmp(a->bytes, b->bytes, 4) < 0;
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

static bool is_beside(wire_string device) {
  const size_t size = sizeof MSG_BESIDE - 1;
  return device.size >= size && memcmp(device.data + device.size - size, MSG_BESIDE, size) == 0;
}

static bool is_processors(wire_string device) {
  return msg_same_device(device, (wire_string){"cpu", 3});
}

static bool share_device(const msg_hello *a, const msg_hello *b) {
  bool same_host = !hash_is_zero(a->host) && hash_equal(a->host, b->host);
  return same_host && msg_same_device(a->device, b->device);
}

bool msg_colocated(const msg_hello *a, const msg_hello *b) {
  return share_device(a, b) && !is_beside(a->device) && !is_beside(b->device);
}

bool msg_beside(const msg_hello *a, const msg_hello *b) {
  return share_device(a, b) && is_processors(a->device) && (is_beside(a->device) || is_beside(b->device));
}

sampler_options msg_sampling(const msg_options *o) {
  return (sampler_options){.temperature = o->temperature,
                           .top_k = o->top_k,
                           .top_p = o->top_p,
                           .min_p = o->min_p,
                           .repeat_penalty = o->repeat_penalty,
                           .presence_penalty = o->presence_penalty,
                           .frequency_penalty = o->frequency_penalty,
                           .seed = o->seed,
                           .choice = o->choice};
}

bool msg_options_extras(const msg_options *o) {
  return o->presence_penalty != 0 || o->frequency_penalty != 0 || o->bias_count > 0 || o->logprobs > 0 ||
         o->grammar_size > 0;
}

void msg_bias_copy(msg_options *to, const msg_options *from, msg_bias *bias) {
  int32_t count = min_i32(from->bias_count, SAMPLER_BIAS_MAX);
  for (int32_t i = 0; i < count; i++) {
    bias->tokens[i] = from->bias_tokens[i];
    bias->values[i] = from->bias_values[i];
  }
  to->bias_tokens = bias->tokens;
  to->bias_values = bias->values;
  to->bias_count = count;
}

void msg_options_copy(msg_options *to, const msg_options *from, int32_t stops[WIRE_STOPS_MAX],
                      msg_bias *bias) {
  *to = *from;
  to->stops = stops;
  to->stop_count = min_i32(from->stop_count, WIRE_STOPS_MAX);
  for (int32_t i = 0; i < to->stop_count; i++) stops[i] = from->stops[i];
  msg_bias_copy(to, from, bias);
}

static int check_stops(const msg_options *o, err *e) {
  if (o->stop_count < 0 || o->stop_count > WIRE_STOPS_MAX)
    return err_set(e, ERR_LIMIT, "a request has 0 to %d stop tokens, not %d", WIRE_STOPS_MAX, o->stop_count);
  for (int32_t i = 0; i < o->stop_count; i++)
    if (o->stops[i] < 0) return err_set(e, ERR_ARG, "stop token %d is not a token", o->stops[i]);
  return ERR_OK;
}

static int check_bias(const msg_options *o, err *e) {
  if (o->bias_count < 0 || o->bias_count > SAMPLER_BIAS_MAX)
    return err_set(e, ERR_LIMIT, "a logit bias has 0 to %d tokens, not %d", SAMPLER_BIAS_MAX, o->bias_count);
  for (int32_t i = 0; i < o->bias_count; i++) {
    float v = o->bias_values[i];
    if (o->bias_tokens[i] < 0)
      return err_set(e, ERR_ARG, "token %d of a logit bias is not a token", o->bias_tokens[i]);
    if (!(v >= -SAMPLER_BIAS_VALUE_MAX && v <= SAMPLER_BIAS_VALUE_MAX))
      return err_set(e, ERR_ARG, "the logit bias of token %d is %g, but must be in [%g, %g]",
                     o->bias_tokens[i], (double)v, (double)-SAMPLER_BIAS_VALUE_MAX,
                     (double)SAMPLER_BIAS_VALUE_MAX);
  }
  return ERR_OK;
}

static int check_range(const char *what, int32_t value, int32_t low, int32_t high, err *e) {
  if (value >= low && value <= high) return ERR_OK;
  return err_set(e, ERR_ARG, "partial KV: %s must be from %d to %d, not %d", what, low, high, value);
}

int msg_partial_check(const msg_partial *p, err *e) {
  if (p->mode != WIRE_PARTIAL_EXACT && p->mode != WIRE_PARTIAL_LOSSY) return ERR_OK;
  int rc = check_range("tokens of a block", p->block, WIRE_PARTIAL_UNIT, WIRE_PARTIAL_BLOCK_MAX, e);
  if (rc == ERR_OK) rc = check_range("sink blocks", p->sink, 0, WIRE_PARTIAL_BLOCKS_MAX, e);
  if (rc == ERR_OK) rc = check_range("retrieval blocks", p->retrieval, 0, WIRE_PARTIAL_BLOCKS_MAX, e);
  if (rc == ERR_OK) rc = check_range("window blocks", p->window, 1, WIRE_PARTIAL_BLOCKS_MAX, e);
  if (rc == ERR_OK) rc = check_range("the buffer's tokens", p->buffer, 2, WIRE_PARTIAL_BUFFER_MAX, e);
  if (rc == ERR_OK) rc = check_range("the refresh interval", p->refresh, 1, WIRE_PARTIAL_REFRESH_MAX, e);
  if (rc != ERR_OK) return rc;
  const int64_t shown = ((int64_t)p->sink + p->retrieval + p->window) * p->block;
  if (p->block % WIRE_PARTIAL_UNIT != 0)
    return err_set(e, ERR_ARG, "partial KV: a block has %d tokens, but must have a multiple of %d", p->block,
                   WIRE_PARTIAL_UNIT);
  if ((p->window - 1) * p->block < p->refresh) /* the last block may have a single token */
    return err_set(
        e, ERR_ARG,
        "partial KV: a window of %d blocks of %d may show %d tokens alone, fewer than the %d that a "
        "pass commits: show more of the last blocks, or refresh more often",
        p->window, p->block, (p->window - 1) * p->block + 1, p->refresh + 1);
  if (p->refresh >= p->buffer)
    return err_set(
        e, ERR_ARG,
        "partial KV: a buffer of %d tokens has no room for the %d that are guessed between passes and "
        "one more: raise the buffer, or refresh more often",
        p->buffer, p->refresh);
  if (shown > p->threshold)
    return err_set(
        e, ERR_ARG,
        "partial KV of %lld tokens (%d + %d + %d blocks of %d) is more than the threshold of %d: raise "
        "that, or show fewer blocks",
        (long long)shown, p->sink, p->retrieval, p->window, p->block, p->threshold);
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
  if (o->logprobs < 0 || o->logprobs > WIRE_LOGPROBS_MAX)
    return err_set(e, ERR_ARG, "a token has 0 to %d log-probabilities, not %d", WIRE_LOGPROBS_MAX,
                   o->logprobs);
  if (o->grammar_size > WIRE_GRAMMAR_MAX)
    return err_set(e, ERR_LIMIT, "a grammar has at most %d bytes, not %u", WIRE_GRAMMAR_MAX, o->grammar_size);
  rc = check_bias(o, e);
  if (rc == ERR_OK) rc = msg_partial_check(&o->partial, e);
  return rc ? rc : check_stops(o, e);
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
