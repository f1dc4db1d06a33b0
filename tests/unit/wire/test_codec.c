/* libs: wire base : labels=vectors */
#include "wire/codec.h"

#include "common/base/rng.h"
#include <inttypes.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VECTORS TANDEM_SOURCE_DIR "/wire/vectors/"

/* --- files --- */

typedef struct bytes {
  uint8_t *data; /* malloc of exactly `size`, so that a sanitizer sees a read beyond it */
  size_t size;
} bytes;

static bytes bytes_copy(const void *data, size_t size) {
  bytes b = {malloc(size ? size : 1), size};
  assert_non_null(b.data);
  if (size) memcpy(b.data, data, size);
  return b;
}

static bytes file_read(const char *folder, const char *name) {
  char path[512];
  snprintf(path, sizeof path, VECTORS "%s/%s.bin", folder, name);
  FILE *f = fopen(path, "rb");
  if (!f) fail_msg("%s is missing: run wire/vectors/make_vectors.py", path);
  static uint8_t buffer[2 * WIRE_FRAME_MAX];
  size_t size = fread(buffer, 1, sizeof buffer, f);
  fclose(f);
  return bytes_copy(buffer, size);
}

static json_t *index_read(const char *name) {
  char path[512];
  json_error_t e;
  snprintf(path, sizeof path, VECTORS "%s", name);
  json_t *index = json_load_file(path, 0, &e);
  if (!index) fail_msg("%s: %s", path, e.text);
  return index;
}

/* --- a decoded message against the fields of the index: member by member, not by the codec's own tables ---
 */

static const char *vector_name, *field_name;

#define HOLDS(condition)                                                                                     \
  do {                                                                                                       \
    if (!(condition)) fail_msg("%s: field %s: %s", vector_name, field_name, #condition);                     \
  } while (0)

static const json_t *member(const json_t *fields, const char *name) {
  const json_t *value = json_object_get(fields, name);
  field_name = name;
  HOLDS(value);
  return value;
}

/* Integers above 2^53 stand as text in the index. */
static uint64_t unsigned_of(const json_t *v) {
  if (json_is_string(v)) return strtoull(json_string_value(v), NULL, 10);
  HOLDS(json_is_integer(v) && json_integer_value(v) >= 0);
  return (uint64_t)json_integer_value(v);
}

static int64_t signed_of(const json_t *v) {
  HOLDS(json_is_integer(v));
  return json_integer_value(v);
}

static void hex_is(const uint8_t *data, size_t size, const char *hex) {
  HOLDS(strlen(hex) == 2 * size);
  for (size_t i = 0; i < size; i++) {
    char two[3];
    snprintf(two, sizeof two, "%02x", data[i]);
    HOLDS(memcmp(two, hex + 2 * i, 2) == 0);
  }
}

static void is_bin16(const json_t *f, const char *name, const uint8_t data[16]) {
  hex_is(data, 16, json_string_value(member(f, name)));
}

static void is_string(const json_t *f, const char *name, wire_string s) {
  const json_t *v = member(f, name);
  HOLDS(json_string_length(v) == s.size);
  HOLDS(memcmp(json_string_value(v), s.data, s.size) == 0);
}

#define IS_UNSIGNED(f, name, value) HOLDS(unsigned_of(member(f, name)) == (value))
#define IS_SIGNED(f, name, value)   HOLDS(signed_of(member(f, name)) == (value))
#define IS_BOOL(f, name, value)                                                                              \
  HOLDS(json_is_boolean(member(f, name)) && json_is_true(member(f, name)) == (value))

static void is_float(const json_t *v, float value) {
  float wanted = (float)json_number_value(v);
  HOLDS(memcmp(&wanted, &value, sizeof value) == 0); /* -0.0 is not 0.0 */
}

/* The i-th entry of a list: written out, {"repeat", "count"} or {"first", "count"}. */
static size_t list_count(const json_t *v) {
  return json_is_array(v) ? json_array_size(v) : (size_t)json_integer_value(json_object_get(v, "count"));
}

static uint64_t list_unsigned(const json_t *v, size_t i) {
  if (json_is_array(v)) return unsigned_of(json_array_get(v, i));
  const json_t *first = json_object_get(v, "first");
  return first ? unsigned_of(first) + i : unsigned_of(json_object_get(v, "repeat"));
}

static void is_int_list(const json_t *f, const char *name, const int32_t *list, int32_t count) {
  const json_t *v = member(f, name);
  HOLDS(list_count(v) == (size_t)count);
  for (int32_t i = 0; i < count; i++) {
    const json_t *one = json_array_get(v, (size_t)i);
    if (json_integer_value(one) < 0)
      HOLDS(list[i] == json_integer_value(one));
    else
      HOLDS((uint64_t)list[i] == list_unsigned(v, (size_t)i));
  }
}

static void is_u64_list(const json_t *f, const char *name, const uint64_t *list, int32_t count) {
  const json_t *v = member(f, name);
  HOLDS(list_count(v) == (size_t)count);
  for (int32_t i = 0; i < count; i++) HOLDS(list[i] == list_unsigned(v, (size_t)i));
}

static void is_float_list(const json_t *f, const char *name, const float *list, int32_t count) {
  const json_t *v = member(f, name);
  HOLDS(list_count(v) == (size_t)count);
  for (int32_t i = 0; i < count; i++)
    is_float(json_is_array(v) ? json_array_get(v, (size_t)i) : json_object_get(v, "repeat"), list[i]);
}

static void is_blob(const json_t *f, const char *name, const uint8_t *data, uint32_t size) {
  const json_t *v = member(f, name);
  if (json_is_null(v))
    HOLDS(data == NULL && size == 0);
  else if (json_is_string(v))
    hex_is(data, size, json_string_value(v));
  else
    HOLDS(size == list_count(v));
  for (uint32_t i = 0; json_is_object(v) && i < size; i++)
    HOLDS(data[i] == strtoul(json_string_value(json_object_get(v, "repeat")), NULL, 16));
}

static void is_hello(const json_t *f, const msg *m) {
  const msg_hello *h = &m->u.hello;
  IS_UNSIGNED(f, "version_min", h->version_min);
  IS_UNSIGNED(f, "version_max", h->version_max);
  IS_SIGNED(f, "role", (int64_t)h->role);
  is_bin16(f, "incarnation", h->incarnation.bytes);
  is_bin16(f, "model_fingerprint", h->model_fingerprint.bytes);
  is_bin16(f, "vocabulary_hash", h->vocabulary_hash.bytes);
  IS_SIGNED(f, "vocabulary_size", h->vocabulary_size);
  is_string(f, "numerics_id", h->numerics_id);
  is_string(f, "endpoint", h->endpoint);
  is_string(f, "method", h->method);
  IS_SIGNED(f, "session_max", h->session_max);
  IS_SIGNED(f, "context_max", h->context_max);
  IS_SIGNED(f, "node_max", h->node_max);
  is_bin16(f, "host", h->host.bytes);
  is_string(f, "device", h->device);
}

static void is_welcome(const json_t *f, const msg *m) {
  is_hello(f, m);
  if (json_object_get(f, "model_hash"))
    is_bin16(f, "model_hash", m->u.hello.model_hash.bytes);
  else
    HOLDS(hash_is_zero(m->u.hello.model_hash));
}

static void is_error(const json_t *f, const msg *m) {
  IS_SIGNED(f, "code", m->u.error.code);
  is_string(f, "text", m->u.error.text);
}

static void is_ping(const json_t *f, const msg *m) {
  IS_UNSIGNED(f, "sequence", m->u.ping.sequence);
  IS_UNSIGNED(f, "time_us", m->u.ping.time_us);
  IS_SIGNED(f, "load", m->u.ping.load);
}

static void is_nothing(const json_t *f, const msg *m) {
  (void)m;
  assert_int_equal(json_object_size(f), 0);
}

static void is_partial(const json_t *f, const msg_partial *p) {
  assert_true((f != NULL) == (p->mode != WIRE_PARTIAL_OWN));
  if (!f) return;
  IS_SIGNED(f, "mode", (int32_t)p->mode);
  IS_SIGNED(f, "block", p->block);
  IS_SIGNED(f, "sink", p->sink);
  IS_SIGNED(f, "retrieval", p->retrieval);
  IS_SIGNED(f, "window", p->window);
  IS_SIGNED(f, "buffer", p->buffer);
  IS_SIGNED(f, "threshold", p->threshold);
  IS_SIGNED(f, "refresh", p->refresh);
}

static void is_options(const json_t *f, const msg_options *o) {
  is_float(member(f, "temperature"), o->temperature);
  is_float(member(f, "top_p"), o->top_p);
  is_float(member(f, "min_p"), o->min_p);
  is_float(member(f, "repeat_penalty"), o->repeat_penalty);
  IS_SIGNED(f, "top_k", o->top_k);
  IS_UNSIGNED(f, "seed", o->seed);
  IS_UNSIGNED(f, "choice", o->choice);
  IS_SIGNED(f, "max_tokens", o->max_tokens);
  IS_SIGNED(f, "context", o->context);
  is_int_list(f, "stops", o->stops, o->stop_count);
  IS_SIGNED(f, "budget", o->budget);
  IS_BOOL(f, "lockstep", o->lockstep);
  IS_SIGNED(f, "selfcheck", o->selfcheck);
  IS_BOOL(f, "single", o->single);
  const json_t *a = json_object_get(f, "extras");
  assert_true((a != NULL) == (msg_options_extras(o) || o->partial.mode != WIRE_PARTIAL_OWN));
  if (!a) return;
  is_float(member(a, "presence_penalty"), o->presence_penalty);
  is_float(member(a, "frequency_penalty"), o->frequency_penalty);
  is_int_list(a, "bias_tokens", o->bias_tokens, o->bias_count);
  is_float_list(a, "bias_values", o->bias_values, o->bias_count);
  IS_SIGNED(a, "logprobs", o->logprobs);
  const json_t *grammar = json_object_get(a, "grammar");
  const bool text = grammar && !json_is_null(grammar);
  assert_true(text == (o->grammar_size > 0));
  is_partial(json_object_get(a, "partial"), &o->partial);
  if (text) is_blob(a, "grammar", (const uint8_t *)o->grammar, o->grammar_size);
}

static void is_open(const json_t *f, const msg *m) {
  const msg_open *o = &m->u.open;
  is_bin16(f, "ticket", o->ticket.bytes);
  IS_UNSIGNED(f, "hash_seed", o->hash_seed);
  IS_SIGNED(f, "base_length", o->base_length);
  is_bin16(f, "base_hash", o->base_hash.bytes);
  is_int_list(f, "tokens", o->tokens, o->token_count);
  is_bin16(f, "hash", o->hash.bytes);
  IS_SIGNED(f, "prompt_length", o->prompt_length);
  is_options(member(f, "options"), &o->options);
  IS_BOOL(f, "draft_expected", o->draft_expected);
  assert_int_equal(json_is_true(json_object_get(f, "accepted_wanted")), o->accepted_wanted);
  assert_int_equal(json_integer_value(json_object_get(f, "total")), o->total);
  is_string(f, "target_endpoint", o->target_endpoint);
  is_bin16(f, "target_incarnation", o->target_incarnation.bytes);
}

static void is_state(const json_t *f, const msg *m) {
  IS_SIGNED(f, "length", m->u.state.length);
  is_bin16(f, "hash", m->u.state.hash.bytes);
}

static void is_desync(const json_t *f, const msg *m) {
  is_state(f, m);
  is_string(f, "reason", m->u.state.reason);
}

static void is_attach(const json_t *f, const msg *m) {
  is_state(f, m);
  is_bin16(f, "ticket", m->u.state.ticket.bytes);
  IS_UNSIGNED(f, "generation", m->u.state.generation);
  const json_t *r = json_object_get(f, "request");
  const msg_feature_request *got = &m->u.state.request;
  field_name = "request";
  HOLDS((r != NULL) == (got->tap_count > 0));
  if (!r) return;
  is_int_list(r, "taps", got->taps, got->tap_count);
  IS_SIGNED(r, "type", got->type);
  is_bin16(r, "fc", got->fc.bytes);
  IS_SIGNED(r, "from", got->from);
  IS_SIGNED(r, "horizon", got->horizon);
}

static void is_attached(const json_t *f, const msg *m) {
  is_state(f, m);
  IS_UNSIGNED(f, "generation", m->u.state.generation);
  const json_t *g = json_object_get(f, "grant");
  const msg_feature_grant *got = &m->u.state.grant;
  field_name = "grant";
  HOLDS((g != NULL) == (got->width > 0));
  if (!g) return;
  IS_SIGNED(g, "width", got->width);
  IS_SIGNED(g, "type", got->type);
  IS_BOOL(g, "fused", got->fused);
  IS_SIGNED(g, "from", got->from);
}

static void is_detach(const json_t *f, const msg *m) {
  is_string(f, "reason", m->u.state.reason);
}
static void is_ended(const json_t *f, const msg *m) {
  IS_BOOL(f, "existed", m->u.existed);
}
static void is_resend(const json_t *f, const msg *m) {
  IS_SIGNED(f, "from", m->u.resend.from);
}
static void is_reset(const json_t *f, const msg *m) {
  IS_UNSIGNED(f, "generation", m->u.reset.generation);
}

static void is_tokens(const json_t *f, const msg *m) {
  const msg_tokens *t = &m->u.tokens;
  IS_SIGNED(f, "base_length", t->base_length);
  is_int_list(f, "tokens", t->tokens, t->token_count);
  is_bin16(f, "hash", t->hash.bytes);
  is_blob(f, "accepted", t->accepted, t->accepted_size);
  const json_t *a = json_object_get(f, "wanted");
  assert_true((a != NULL) == (t->logprob_count > 0 || t->plain_us > 0));
  assert_int_equal(json_integer_value(json_object_get(a, "plain_us")), t->plain_us);
  if (a) is_int_list(a, "logprob_tokens", t->logprob_tokens, t->logprob_count);
  if (a) is_float_list(a, "logprobs", t->logprobs, t->logprob_count);
}

static void is_nodes(const json_t *f, const msg *m) {
  const msg_nodes *n = &m->u.nodes;
  IS_UNSIGNED(f, "generation", n->generation);
  IS_SIGNED(f, "base_length", n->base_length);
  is_bin16(f, "base_hash", n->base_hash.bytes);
  IS_UNSIGNED(f, "first_id", n->first_id);
  is_u64_list(f, "parents", n->parents, n->count);
  is_int_list(f, "tokens", n->tokens, n->count);
  is_float_list(f, "scores", n->scores, n->count);
  IS_BOOL(f, "done", n->done);
  field_name = "features";
  if (json_object_get(f, "features"))
    IS_SIGNED(f, "features", n->features);
  else
    HOLDS(n->features == 0);
}

static void is_features(const json_t *f, const msg *m) {
  const msg_features *x = &m->u.features;
  IS_SIGNED(f, "base", x->base);
  IS_SIGNED(f, "count", x->count);
  IS_SIGNED(f, "width", x->width);
  IS_SIGNED(f, "type", x->type);
  is_blob(f, "rows", x->rows, x->size);
}

static void is_stats(const json_t *f, const msg_stats *s) {
  IS_UNSIGNED(f, "forwards", s->forwards);
  IS_UNSIGNED(f, "rounds", s->rounds);
  IS_UNSIGNED(f, "rows", s->rows);
  IS_UNSIGNED(f, "accepted", s->accepted);
  IS_UNSIGNED(f, "rewound", s->rewound);
  IS_UNSIGNED(f, "prefill_us", s->prefill_us);
  IS_UNSIGNED(f, "queue_us", s->queue_us);
  IS_UNSIGNED(f, "forward_us", s->forward_us);
  IS_UNSIGNED(f, "accept_us", s->accept_us);
  IS_UNSIGNED(f, "commit_us", s->commit_us);
  IS_UNSIGNED(f, "wait_us", s->wait_us);
  IS_UNSIGNED(f, "plain_steps", s->plain_steps);
  IS_UNSIGNED(f, "resets", s->resets);
  IS_UNSIGNED(f, "dropped", s->dropped);
  is_u64_list(f, "accepted_per_pos", s->accepted_per_pos, s->position_count);
  const json_t *ahead = json_object_get(f, "ahead");
  if (!ahead) {
    assert_true(s->verdicts == 0 && s->ahead_hits == 0 && s->survivors == 0);
    return;
  }
  IS_UNSIGNED(ahead, "verdicts", s->verdicts);
  IS_UNSIGNED(ahead, "ahead_hits", s->ahead_hits);
  IS_UNSIGNED(ahead, "survivors", s->survivors);
}

static void is_done(const json_t *f, const msg *m) {
  const msg_done *d = &m->u.done;
  IS_SIGNED(f, "length", d->length);
  is_bin16(f, "hash", d->hash.bytes);
  IS_SIGNED(f, "finish", (int64_t)d->finish);
  IS_SIGNED(f, "code", d->code);
  is_string(f, "text", d->text);
  is_string(f, "off_reason", d->off_reason);
  is_stats(member(f, "stats"), &d->stats);
  const json_t *numbers = json_object_get(f, "numbers");
  if (!numbers) {
    HOLDS(d->off == 0 && d->plain_us == 0);
    return;
  }
  IS_UNSIGNED(numbers, "off", d->off);
  IS_UNSIGNED(numbers, "plain_us", d->plain_us);
}

static const struct {
  const char *name;
  msg_type type;
  void (*is)(const json_t *fields, const msg *m);
} kinds[] = {
    {"HELLO", MSG_HELLO, is_hello},    {"WELCOME", MSG_WELCOME, is_welcome},
    {"ERROR", MSG_ERROR, is_error},    {"PING", MSG_PING, is_ping},
    {"PONG", MSG_PONG, is_ping},       {"BYE", MSG_BYE, is_nothing},
    {"OPEN", MSG_OPEN, is_open},       {"OPENED", MSG_OPENED, is_state},
    {"END", MSG_END, is_nothing},      {"ENDED", MSG_ENDED, is_ended},
    {"DESYNC", MSG_DESYNC, is_desync}, {"PART", MSG_PART, is_open},
    {"TOKENS", MSG_TOKENS, is_tokens}, {"ACK", MSG_ACK, is_state},
    {"RESEND", MSG_RESEND, is_resend}, {"DONE", MSG_DONE, is_done},
    {"ATTACH", MSG_ATTACH, is_attach}, {"ATTACHED", MSG_ATTACHED, is_attached},
    {"NODES", MSG_NODES, is_nodes},    {"TREE_RESET", MSG_TREE_RESET, is_reset},
    {"DETACH", MSG_DETACH, is_detach}, {"FEATURES", MSG_FEATURES, is_features},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

/* --- fixture: one arena, limited to what the header promises is enough --- */

typedef struct bench {
  arena memory;
  codec_buffer out;
  msg m;
  err e;
} bench;

static void bench_init(bench *b) {
  *b = (bench){0};
  arena_init(&b->memory, CODEC_ARENA_MAX);
}

static void bench_fini(bench *b) {
  arena_fini(&b->memory);
  codec_buffer_fini(&b->out);
}

static int bench_decode(bench *b, bytes frame) {
  arena_reset(&b->memory);
  memset(&b->m, 0xA5, sizeof b->m);
  b->e = (err){0};
  return codec_decode(frame.data, frame.size, &b->memory, &b->m, &b->e);
}

static void bench_decode_ok(bench *b, bytes frame) {
  if (bench_decode(b, frame) != ERR_OK) fail_msg("%s: %s", vector_name, b->e.text);
  assert_true(b->memory.used <= CODEC_ARENA_MAX);
}

/* Encodes what was decoded; true when the frame has the same bytes. */
static bool bench_encodes_to(bench *b, bytes frame) {
  if (codec_encode(&b->m, &b->out, &b->e) != ERR_OK) fail_msg("%s: %s", vector_name, b->e.text);
  return b->out.size == frame.size && memcmp(b->out.data, frame.data, frame.size) == 0;
}

static void message_is(const json_t *entry, const msg *m) {
  const char *type = json_string_value(member(entry, "type"));
  is_bin16(entry, "to", m->to.bytes);
  IS_UNSIGNED(entry, "session", m->session);
  IS_UNSIGNED(entry, "epoch", m->epoch);
  for (size_t k = 0; k < KINDS; k++) {
    if (strcmp(kinds[k].name, type) != 0) continue;
    assert_int_equal(m->type, kinds[k].type);
    assert_string_equal(msg_name(m->type), type);
    kinds[k].is(member(entry, "fields"), m);
    return;
  }
  fail_msg("%s: unknown type %s", vector_name, type);
}

/* --- good vectors --- */

static void test_every_good_frame_decodes_and_encodes_to_itself(void **state) {
  (void)state;
  bench b;
  json_t *index = index_read("good.json"), *entry;
  size_t i, seen[KINDS] = {0};
  bench_init(&b);
  assert_true(json_array_size(index) >= 40);
  json_array_foreach(index, i, entry) {
    vector_name = json_string_value(json_object_get(entry, "name"));
    bytes frame = file_read("good", vector_name);
    const json_t *hex = json_object_get(entry, "hex");
    if (json_is_string(hex)) hex_is(frame.data, frame.size, json_string_value(hex));
    bench_decode_ok(&b, frame);
    message_is(entry, &b.m);
    bool same = bench_encodes_to(&b, frame);
    assert_int_equal(same, json_is_true(json_object_get(entry, "canonical")));
    bytes again = bytes_copy(b.out.data, b.out.size);
    bench_decode_ok(&b, again);
    message_is(entry, &b.m);
    assert_true(bench_encodes_to(&b, again));
    for (size_t k = 0; k < KINDS; k++) seen[k] += kinds[k].type == b.m.type;
    free(again.data);
    free(frame.data);
  }
  for (size_t k = 0; k < KINDS; k++)
    if (!seen[k]) fail_msg("no good vector of type %s", kinds[k].name);
  json_decref(index);
  bench_fini(&b);
}

/* No beginning of a good frame is a frame; what follows the end is refused. Of large ones, some lengths only.
 */
static void test_no_beginning_of_a_frame_is_a_frame(void **state) {
  (void)state;
  bench b;
  json_t *index = index_read("good.json"), *entry;
  size_t i, refused = 0;
  bench_init(&b);
  json_array_foreach(index, i, entry) {
    vector_name = json_string_value(json_object_get(entry, "name"));
    bytes whole = file_read("good", vector_name);
    size_t stride = whole.size > 4096 ? whole.size / 199 + 1 : 1;
    for (size_t size = 0; size < whole.size; size += stride, refused++) {
      bytes part = bytes_copy(whole.data, size);
      if (bench_decode(&b, part) != ERR_PROTOCOL)
        fail_msg("%s cut to %zu bytes was taken", vector_name, size);
      assert_int_equal(b.memory.used, 0); /* nothing is taken before the frame is known to be whole */
      free(part.data);
    }
    free(whole.data);
  }
  assert_true(refused > 5000);
  json_decref(index);
  bench_fini(&b);
}

/* --- bad vectors --- */

static void test_every_bad_frame_is_refused_by_its_rule(void **state) {
  (void)state;
  bench b;
  json_t *index = index_read("bad.json"), *entry;
  size_t i;
  bench_init(&b);
  assert_true(json_array_size(index) >= 80);
  json_array_foreach(index, i, entry) {
    vector_name = json_string_value(json_object_get(entry, "name"));
    const char *rule = json_string_value(json_object_get(entry, "rule"));
    const char *where = json_string_value(json_object_get(entry, "where"));
    const char *code_name = json_string_value(json_object_get(entry, "code"));
    bytes frame = file_read("bad", vector_name);
    int code = bench_decode(&b, frame);
    size_t n = strlen(rule);
    if (code == ERR_OK) fail_msg("%s was taken", vector_name);
    if (strcmp(err_name(code), code_name) != 0 || b.e.code != code)
      fail_msg("%s: code %s instead of %s", vector_name, err_name(code), code_name);
    if (strncmp(b.e.text, rule, n) != 0 || b.e.text[n] != ':' || !strstr(b.e.text, where))
      fail_msg("%s: \"%s\" instead of %s and \"%s\"", vector_name, b.e.text, rule, where);
    assert_true(b.memory.used <= CODEC_ARENA_MAX);
    free(frame.data);
  }
  json_decref(index);
  bench_fini(&b);
}

/* A refused frame still tells its session when it can, so that the answer can name it. */
static void test_a_refused_frame_still_names_its_session(void **state) {
  (void)state;
  const struct {
    const char *name;
    msg_type type;
    uint64_t session;
    uint32_t epoch;
  } cases[] = {{"frame_trailing", MSG_ACK, 77, 1},
               {"tokens_many", MSG_TOKENS, 77, 1},
               {"frame_cut_in_integer", MSG_ACK, 77, 0},
               {"type_beyond", 36, 77, 1},
               {"frame_empty", 0, 0, 0},
               {"frame_deep", 0, 0, 0},
               {"session_negative", MSG_ACK, 0, 0},
               {"open_empty", MSG_OPEN, 77, 1}};
  bench b;
  bench_init(&b);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    vector_name = cases[i].name;
    bytes frame = file_read("bad", vector_name);
    assert_int_not_equal(bench_decode(&b, frame), ERR_OK);
    if (b.m.session != cases[i].session || b.m.epoch != cases[i].epoch || b.m.type != cases[i].type)
      fail_msg("%s: type %d, session %" PRIu64 ", epoch %u", vector_name, (int)b.m.type, b.m.session,
               b.m.epoch);
    free(frame.data);
  }
  bench_fini(&b);
}

static void test_a_full_arena_refuses_the_frame(void **state) {
  (void)state;
  bench b;
  bench_init(&b);
  b.memory.limit = 1000; /* less than these 131072 tokens need */
  bytes frame = file_read("good", "open_most_tokens");
  assert_int_equal(bench_decode(&b, frame), ERR_NOMEM);
  assert_true(b.memory.used <= 1000);
  free(frame.data);
  bench_fini(&b);
}

static void test_accepted_bits_begin_at_the_least_significant_one(void **state) {
  (void)state;
  const uint8_t flags[11] = {1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0}, want[2] = {0x89, 0x02};
  uint8_t bits[MSG_ACCEPTED_SIZE(11)] = {0xff, 0xff};
  msg_pack_accepted(flags, 11, bits);
  assert_int_equal(MSG_ACCEPTED_SIZE(11), 2);
  assert_memory_equal(bits, want, 2);
  msg_tokens t = {.token_count = 11, .accepted = bits, .accepted_size = 2}, silent = {.token_count = 11};
  for (int32_t i = 0; i < 11; i++) {
    assert_int_equal(msg_token_accepted(&t, i), flags[i]);
    assert_false(msg_token_accepted(&silent, i));
  }
}

/* --- encoding refuses what decoding would refuse --- */

static msg message_of(msg_type type) {
  msg m = {.type = type, .to = {{1}}, .session = 5, .epoch = 1};
  return m;
}

static void refuses(bench *b, const msg *m, int code, const char *text) {
  b->e = (err){0};
  int got = codec_encode(m, &b->out, &b->e);
  if (got != code || !strstr(b->e.text, text)) fail_msg("%s: %s, wanted %s", err_name(got), b->e.text, text);
}

static void test_encoding_refuses_what_decoding_would_refuse(void **state) {
  (void)state;
  static int32_t tokens[WIRE_TOKENS_MAX + 1];
  static uint8_t bits[WIRE_FRAME_MAX];
  static char text[WIRE_STRING_MAX + 1];
  uint64_t parents[2] = {0, 2};
  float scores[2] = {-1.0f, 0.5f};
  bench b;
  bench_init(&b);
  msg m = message_of(MSG_TOKENS);
  m.u.tokens = (msg_tokens){.base_length = 1, .tokens = tokens, .token_count = WIRE_BURST_MAX + 1};
  refuses(&b, &m, ERR_LIMIT, "R-LIST-LIMIT: TOKENS.tokens");
  m.u.tokens = (msg_tokens){.base_length = 1, .accepted = bits, .accepted_size = sizeof bits};
  refuses(&b, &m, ERR_LIMIT, "R-BLOB-LIMIT: TOKENS.accepted");
  m.u.tokens = (msg_tokens){.base_length = 0};
  refuses(&b, &m, ERR_PROTOCOL, "R-INT-LOW: TOKENS.base_length");
  m.u.tokens = (msg_tokens){.base_length = 1};
  m.to = (wire_id){{0}};
  refuses(&b, &m, ERR_PROTOCOL, "R-TO: TOKENS");
  m = message_of(MSG_TOKENS);
  m.session = 0;
  refuses(&b, &m, ERR_PROTOCOL, "R-SESSION: TOKENS");
  m = message_of(MSG_DETACH);
  memset(text, 'x', sizeof text);
  m.u.state.reason = (wire_string){text, sizeof text};
  refuses(&b, &m, ERR_LIMIT, "R-STRING-LIMIT: DETACH.reason");
  m = message_of(MSG_NODES);
  m.u.nodes = (msg_nodes){
      .base_length = 1, .first_id = 1, .parents = parents, .tokens = tokens, .scores = scores, .count = 2};
  refuses(&b, &m, ERR_PROTOCOL, "R-SCORE: NODES.scores[1]");
  scores[1] = -1.0f;
  refuses(&b, &m, ERR_PROTOCOL, "R-NODES-PARENT");
  m = message_of(MSG_FEATURES);
  m.u.features = (msg_features){.width = 1, .type = WIRE_F32, .count = 1, .rows = bits, .size = 3};
  refuses(&b, &m, ERR_PROTOCOL, "R-FEATURES-SIZE");
  m.u.features.size = WIRE_FEATURES_MAX + 1;
  refuses(&b, &m, ERR_LIMIT, "R-BLOB-LIMIT: FEATURES.rows");
  m = message_of(MSG_NODES);
  m.u.nodes = (msg_nodes){
      .base_length = 1, .first_id = 1, .parents = parents, .tokens = tokens, .scores = scores, .count = 2};
  parents[1] = 1;
  assert_int_equal(codec_encode(&m, &b.out, &b.e), ERR_OK);
  bench_fini(&b);
}

/* An error must get through whatever its text holds. */
static void test_the_text_of_an_error_is_cleaned(void **state) {
  (void)state;
  const struct {
    const char *text, *wanted;
  } cases[] = {{"na\xc3\xafve", "na\xc3\xafve"},
               {"cut \xe2\x82", "cut ??"},
               {"\xff\xfe", "??"},
               {"two\nlines\t\x7f", "two?lines??"},
               {"\xed\xa0\x80", "???"},
               {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
               {"c1 \xc2\x9b", "c1 ??"},
               {"\xc0\xaf\xc3\xa9", "??\xc3\xa9"},
               {"", ""}};
  bench b;
  bench_init(&b);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    msg m = message_of(MSG_ERROR);
    m.u.error = (msg_error){ERR_IO, {cases[i].text, (uint32_t)strlen(cases[i].text)}};
    vector_name = cases[i].wanted;
    assert_int_equal(codec_encode(&m, &b.out, &b.e), ERR_OK);
    bench_decode_ok(&b, (bytes){b.out.data, b.out.size});
    assert_int_equal(b.m.u.error.text.size, strlen(cases[i].wanted));
    assert_memory_equal(b.m.u.error.text.data, cases[i].wanted, strlen(cases[i].wanted));
  }
  bench_fini(&b);
}

/* The buffer grows to what is needed and then stays. */
static void test_the_buffer_grows_once_and_stays(void **state) {
  (void)state;
  bench b;
  bench_init(&b);
  bytes large = file_read("good", "open_most_tokens");
  vector_name = "open_most_tokens";
  bench_decode_ok(&b, large);
  assert_true(bench_encodes_to(&b, large));
  const uint8_t *data = b.out.data;
  size_t capacity = b.out.capacity;
  arena_chunk *first = b.memory.first;
  for (int i = 0; i < 3; i++) {
    bench_decode_ok(&b, large);
    assert_true(bench_encodes_to(&b, large));
  }
  assert_ptr_equal(b.out.data, data);
  assert_int_equal(b.out.capacity, capacity);
  assert_ptr_equal(b.memory.first, first);
  free(large.data);
  bench_fini(&b);
}

/* --- random frames --- */

typedef struct dice {
  uint32_t key[2], count;
} dice;

static uint32_t roll(dice *d) {
  uint32_t counter[4] = {d->count++, 0, 0, 0};
  return philox4x32(counter, d->key).lane[0];
}

static uint64_t roll64(dice *d) { /* all sizes are likely */
  uint64_t high = roll(d), low = roll(d);
  return (high << 32 | low) >> roll(d) % 64;
}

/* Good frames with a few bytes changed, cut or grown: taken or refused, and what is taken encodes and decodes
 * to the same again. */
static void test_a_changed_frame_is_refused_or_encodes_to_itself(void **state) {
  (void)state;
  bench b;
  json_t *index = index_read("good.json"), *entry;
  dice d = {{2024, 6}, 0};
  size_t i, taken = 0, refused = 0;
  bench_init(&b);
  json_array_foreach(index, i, entry) {
    vector_name = json_string_value(json_object_get(entry, "name"));
    bytes frame = file_read("good", vector_name);
    for (int round = 0; round < 300 && frame.size < 4096; round++) {
      bytes changed = bytes_copy(frame.data, frame.size);
      for (uint32_t k = roll(&d) % 3 + 1; k > 0; k--) changed.data[roll(&d) % frame.size] = (uint8_t)roll(&d);
      if (bench_decode(&b, changed) == ERR_OK) {
        taken++;
        bench_encodes_to(&b, changed);
        bytes again = bytes_copy(b.out.data, b.out.size);
        bench_decode_ok(&b, again);
        assert_true(bench_encodes_to(&b, again));
        free(again.data);
      } else {
        refused++;
        assert_true(b.e.code == ERR_PROTOCOL || b.e.code == ERR_LIMIT || b.e.code == ERR_VERSION);
        assert_true(strncmp(b.e.text, "R-", 2) == 0);
      }
      free(changed.data);
    }
    free(frame.data);
  }
  assert_true(taken > 500 && refused > 500);
  json_decref(index);
  bench_fini(&b);
}

#define RANDOM_NODES 64

/* Random values of every width come back as they were. */
static void test_random_values_come_back_as_they_were(void **state) {
  (void)state;
  bench b;
  dice d = {{7, 7}, 0};
  bench_init(&b);
  vector_name = "random";
  for (int round = 0; round < 2000; round++) {
    uint64_t parents[RANDOM_NODES];
    int32_t tokens[RANDOM_NODES];
    float scores[RANDOM_NODES];
    msg m = message_of(MSG_NODES);
    m.session = roll64(&d) | 1;
    m.epoch = (uint32_t)roll64(&d);
    for (int i = 0; i < 16; i++) m.to.bytes[i] = (uint8_t)(roll(&d) | 1);
    msg_nodes *n = &m.u.nodes;
    *n = (msg_nodes){.generation = (uint32_t)roll64(&d),
                     .base_length = (int32_t)(roll64(&d) % WIRE_CONTEXT_MAX) + 1,
                     .first_id = roll64(&d) % INT64_MAX + 1,
                     .parents = parents,
                     .tokens = tokens,
                     .scores = scores,
                     .count = (int32_t)(roll(&d) % (RANDOM_NODES + 1)),
                     .done = roll(&d) & 1};
    for (int32_t i = 0; i < n->count; i++) {
      parents[i] = roll64(&d) % (n->first_id + (uint64_t)i);
      tokens[i] = (int32_t)(roll64(&d) & INT32_MAX);
      scores[i] = -100.0f * philox_unit(roll(&d));
    }
    assert_int_equal(codec_encode(&m, &b.out, &b.e), ERR_OK);
    bench_decode_ok(&b, (bytes){b.out.data, b.out.size});
    const msg_nodes *got = &b.m.u.nodes;
    assert_int_equal(b.m.session, m.session);
    assert_int_equal(b.m.epoch, m.epoch);
    assert_memory_equal(&b.m.to, &m.to, sizeof m.to);
    assert_int_equal(got->generation, n->generation);
    assert_int_equal(got->base_length, n->base_length);
    assert_int_equal(got->first_id, n->first_id);
    assert_int_equal(got->count, n->count);
    assert_int_equal(got->done, n->done);
    assert_memory_equal(got->parents, parents, (size_t)n->count * sizeof *parents);
    assert_memory_equal(got->tokens, tokens, (size_t)n->count * sizeof *tokens);
    assert_memory_equal(got->scores, scores, (size_t)n->count * sizeof *scores);
  }
  bench_fini(&b);
}

static void test_noise_is_refused(void **state) {
  (void)state;
  bench b;
  dice d = {{1, 1}, 0};
  bench_init(&b);
  for (int round = 0; round < 20000; round++) {
    uint8_t noise[64];
    size_t size = roll(&d) % sizeof noise;
    for (size_t i = 0; i < size; i++) noise[i] = (uint8_t)roll(&d);
    bytes frame = bytes_copy(noise, size);
    assert_int_not_equal(bench_decode(&b, frame), ERR_OK);
    free(frame.data);
  }
  bench_fini(&b);
}

/* --- the hash chain against Python's xxhash --- */

static void test_hashes_are_those_of_pythons_xxhash(void **state) {
  (void)state;
  json_t *index = index_read("hash.json"), *entry;
  size_t i, checked = 0;
  json_array_foreach(index, i, entry) {
    const json_t *tokens = json_object_get(entry, "tokens"), *hashes = json_object_get(entry, "hashes");
    uint64_t seed = strtoull(json_string_value(json_object_get(entry, "seed")), NULL, 10);
    hash16 h = {{0}};
    assert_int_equal(json_array_size(hashes), json_array_size(tokens) + 1);
    for (size_t n = 0; n < json_array_size(hashes); n++, checked++) {
      char hex[33];
      if (n > 0) h = hash_next(h, seed, (int32_t)json_integer_value(json_array_get(tokens, n - 1)));
      hash_format(h, hex);
      assert_string_equal(hex, json_string_value(json_array_get(hashes, n)));
    }
  }
  assert_true(checked > 300);
  json_decref(index);
}

static void test_every_type_has_its_name(void **state) {
  (void)state;
  for (size_t k = 0; k < KINDS; k++) assert_string_equal(msg_name(kinds[k].type), kinds[k].name);
  assert_string_equal(msg_name((msg_type)0), "?");
  assert_string_equal(msg_name((msg_type)99), "?");
}

/* The page names every rule that a bad vector breaks, every limit, and every error with its number. */
static char *page_read(void) {
  const char *path = TANDEM_SOURCE_DIR "/wire/PROTOCOL.md";
  static char page[200000];
  FILE *f = fopen(path, "rb");
  if (!f) fail_msg("%s is missing", path);
  size_t size = fread(page, 1, sizeof page - 1, f);
  fclose(f);
  assert_true(size < sizeof page - 1);
  page[size] = 0;
  return page;
}

static void page_has(const char *page, const char *format, ...) {
  char wanted[200];
  va_list args;
  va_start(args, format);
  vsnprintf(wanted, sizeof wanted, format, args);
  va_end(args);
  if (!strstr(page, wanted)) fail_msg("wire/PROTOCOL.md does not say \"%s\"", wanted);
}

static void test_the_protocol_page_names_every_rule_limit_and_error(void **state) {
  (void)state;
  const char *page = page_read();
  json_t *index = index_read("bad.json"), *entry;
  size_t i;
  json_array_foreach(index, i, entry)
      page_has(page, "| **%s** |", json_string_value(json_object_get(entry, "rule")));
  json_decref(index);
#define PAGE_ERROR(name, number, text) page_has(page, "| %d | %s |", number, text);
  ERR_LIST(PAGE_ERROR)
#undef PAGE_ERROR
#define PAGE_TYPE(name, number) page_has(page, "| %d | %s |", number, #name);
  MSG_LIST(PAGE_TYPE)
#undef PAGE_TYPE
  page_has(page, "| bytes of a frame | %u |", WIRE_FRAME_MAX);
  page_has(page, "| depth of arrays | %d |", WIRE_DEPTH_MAX);
  page_has(page, "| length of C, and every position | %d |", WIRE_CONTEXT_MAX);
  page_has(page, "| tokens in one OPEN or PART | %d |", WIRE_TOKENS_MAX);
  page_has(page, "| tokens in one TOKENS | %d |", WIRE_BURST_MAX);
  page_has(page, "| nodes in one NODES | %d |", WIRE_NODES_MAX);
  page_has(page, "| budget (nodes in one verify) | %d |", WIRE_BUDGET_MAX);
  page_has(page, "| stop tokens | %d |", WIRE_STOPS_MAX);
  page_has(page, "| taps of a request | %d |", WIRE_TAPS_MAX);
  page_has(page, "| largest tap | %d |", WIRE_TAP_MAX);
  page_has(page, "| largest horizon | %d |", WIRE_HORIZON_MAX);
  page_has(page, "| values of a row of features | %d |", WIRE_FEATURE_WIDTH_MAX);
  page_has(page, "| rows in one FEATURES | %d |", WIRE_FEATURE_ROWS_MAX);
  page_has(page, "| bytes of the rows in one FEATURES | %d |", WIRE_FEATURES_MAX);
  page_has(page, "| credit for features: bytes of rows ahead of NODES.features | %d |", WIRE_FEATURES_CREDIT);
  page_has(page, "| entries of accepted_per_pos | %d |", WIRE_POSITIONS_MAX);
  page_has(page, "| bytes of a str | %d |", WIRE_STRING_MAX);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_good_frame_decodes_and_encodes_to_itself),
      cmocka_unit_test(test_no_beginning_of_a_frame_is_a_frame),
      cmocka_unit_test(test_every_bad_frame_is_refused_by_its_rule),
      cmocka_unit_test(test_a_refused_frame_still_names_its_session),
      cmocka_unit_test(test_a_full_arena_refuses_the_frame),
      cmocka_unit_test(test_accepted_bits_begin_at_the_least_significant_one),
      cmocka_unit_test(test_encoding_refuses_what_decoding_would_refuse),
      cmocka_unit_test(test_the_text_of_an_error_is_cleaned),
      cmocka_unit_test(test_the_buffer_grows_once_and_stays),
      cmocka_unit_test(test_a_changed_frame_is_refused_or_encodes_to_itself),
      cmocka_unit_test(test_random_values_come_back_as_they_were),
      cmocka_unit_test(test_noise_is_refused),
      cmocka_unit_test(test_hashes_are_those_of_pythons_xxhash),
      cmocka_unit_test(test_every_type_has_its_name),
      cmocka_unit_test(test_the_protocol_page_names_every_rule_limit_and_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
