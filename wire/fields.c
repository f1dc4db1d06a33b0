#include "wire/fields.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define ARRAY_COUNT(a) (uint32_t)(sizeof(a) / sizeof(a)[0])
#define GROUP(fields)                                                                                        \
  { fields, ARRAY_COUNT(fields) }

#define PLAIN(s, f, k) .name = #f, .kind = k, .offset = offsetof(s, f)
#define INT(s, f, k, lo, hi)                                                                                 \
  { PLAIN(s, f, k), .min = (lo), .max = (hi) }
#define U32(s, f)        INT(s, f, FIELD_U32, 0, UINT32_MAX)
#define U64(s, f)        INT(s, f, FIELD_U64, 0, UINT64_MAX)
#define COUNT(s, f)      INT(s, f, FIELD_I32, 0, INT32_MAX)
#define LENGTH(s, f, lo) INT(s, f, FIELD_I32, lo, WIRE_CONTEXT_MAX)
#define OF(s, f, k)                                                                                          \
  { PLAIN(s, f, k) }
#define LIST(s, f, k, n, limit, hi, same)                                                                    \
  {                                                                                                          \
    PLAIN(s, f, k), .max = (hi), .list = true, .count_offset = offsetof(s, n), .count_max = (limit),         \
                    .same_count = (same)                                                                     \
  }
#define TOKEN_LIST(s, f, n, limit) LIST(s, f, FIELD_I32, n, limit, INT32_MAX, false)
#define BLOB(s, f, size, limit)                                                                              \
  { PLAIN(s, f, FIELD_BLOB), .max = (limit), .count_offset = offsetof(s, size) }
/* Last in its message or group, left out where `member` of struct `s` is zero. */
#define LEFT_OUT(s, member) .absent_offset = offsetof(s, member), .absent_size = sizeof(((s *)0)->member)

/* clang-format off */
#define HELLO_HEAD                                                                                           \
  {.name = "magic", .kind = FIELD_MAGIC},                                                                    \
  U32(msg_hello, version_min),                                                                               \
  U32(msg_hello, version_max),                                                                               \
  INT(msg_hello, role, FIELD_ENUM, WIRE_ROLE_ORCHESTRATOR, WIRE_ROLE_DRAFT),                                 \
  OF(msg_hello, incarnation, FIELD_BIN16),                                                                   \
  OF(msg_hello, model_fingerprint, FIELD_BIN16),                                                             \
  OF(msg_hello, vocabulary_hash, FIELD_BIN16),                                                               \
  COUNT(msg_hello, vocabulary_size),                                                                         \
  OF(msg_hello, numerics_id, FIELD_STR),                                                                     \
  OF(msg_hello, endpoint, FIELD_STR),                                                                        \
  OF(msg_hello, method, FIELD_STR),                                                                          \
  COUNT(msg_hello, session_max),                                                                             \
  COUNT(msg_hello, context_max),                                                                             \
  COUNT(msg_hello, node_max),                                                                                \
  OF(msg_hello, host, FIELD_BIN16),                                                                          \
  OF(msg_hello, device, FIELD_STR)
/* clang-format on */
static const field hello_fields[] = {HELLO_HEAD};
static const field welcome_fields[] = {
    HELLO_HEAD,
    {PLAIN(msg_hello, model_hash, FIELD_BIN16), LEFT_OUT(msg_hello, model_hash)},
};

static const field error_fields[] = {
    INT(msg_error, code, FIELD_ENUM, INT32_MIN, 0),
    OF(msg_error, text, FIELD_STR),
};

static const field ping_fields[] = {U64(msg_ping, sequence), U64(msg_ping, time_us), COUNT(msg_ping, load)};

static const field partial_fields[] = {
    INT(msg_partial, mode, FIELD_ENUM, WIRE_PARTIAL_OWN, WIRE_PARTIAL_LOSSY),
    COUNT(msg_partial, block),
    COUNT(msg_partial, sink),
    COUNT(msg_partial, retrieval),
    COUNT(msg_partial, window),
    COUNT(msg_partial, buffer),
    COUNT(msg_partial, threshold),
    COUNT(msg_partial, refresh),
};
static const field_group partial_group = GROUP(partial_fields);

/* Of the same struct as the options around it. */
static const field extra_fields[] = {
    OF(msg_options, presence_penalty, FIELD_F32),
    OF(msg_options, frequency_penalty, FIELD_F32),
    TOKEN_LIST(msg_options, bias_tokens, bias_count, SAMPLER_BIAS_MAX),
    LIST(msg_options, bias_values, FIELD_F32, bias_count, SAMPLER_BIAS_MAX, 0, true),
    INT(msg_options, logprobs, FIELD_I32, 0, WIRE_LOGPROBS_MAX),
    {PLAIN(msg_options, grammar, FIELD_BLOB), .max = WIRE_GRAMMAR_MAX,
     .count_offset = offsetof(msg_options, grammar_size), LEFT_OUT(msg_options, grammar_size)},
    {PLAIN(msg_options, partial, FIELD_GROUP), .group = &partial_group, LEFT_OUT(msg_options, partial.mode)},
};
static const field_group extra_group = GROUP(extra_fields);
#define EXTRAS_SIZE (2 * sizeof(float) + 4 * sizeof(int32_t)) /* of what is zero where there are none */
_Static_assert(offsetof(msg_options, partial.mode) + sizeof(wire_partial) ==
                   offsetof(msg_options, presence_penalty) + EXTRAS_SIZE,
               "the penalties, the counts and the mode lie one behind the other");

static const field option_fields[] = {
    OF(msg_options, temperature, FIELD_F32),
    OF(msg_options, top_p, FIELD_F32),
    OF(msg_options, min_p, FIELD_F32),
    OF(msg_options, repeat_penalty, FIELD_F32),
    INT(msg_options, top_k, FIELD_I32, INT32_MIN, INT32_MAX),
    U64(msg_options, seed),
    U32(msg_options, choice),
    INT(msg_options, max_tokens, FIELD_I32, 1, INT32_MAX),
    LENGTH(msg_options, context, 1),
    TOKEN_LIST(msg_options, stops, stop_count, WIRE_STOPS_MAX),
    INT(msg_options, budget, FIELD_I32, 0, WIRE_BUDGET_MAX),
    OF(msg_options, lockstep, FIELD_BOOL),
    COUNT(msg_options, selfcheck),
    OF(msg_options, single, FIELD_BOOL),
    {.name = "extras",
     .kind = FIELD_GROUP,
     .group = &extra_group,
     .absent_offset = offsetof(msg_options, presence_penalty),
     .absent_size = EXTRAS_SIZE},
};
static const field_group option_group = GROUP(option_fields);

/* clang-format off */
#define OPEN_HEAD                                                                                            \
  OF(msg_open, ticket, FIELD_BIN16),                                                                         \
  U64(msg_open, hash_seed),                                                                                  \
  LENGTH(msg_open, base_length, 0),                                                                          \
  OF(msg_open, base_hash, FIELD_BIN16),                                                                      \
  TOKEN_LIST(msg_open, tokens, token_count, WIRE_TOKENS_MAX),                                                \
  OF(msg_open, hash, FIELD_BIN16),                                                                           \
  LENGTH(msg_open, prompt_length, 1),                                                                        \
  {PLAIN(msg_open, options, FIELD_GROUP), .group = &option_group},                                           \
  OF(msg_open, draft_expected, FIELD_BOOL),                                                                  \
  OF(msg_open, target_endpoint, FIELD_STR),                                                                  \
  OF(msg_open, target_incarnation, FIELD_BIN16)
/* clang-format on */
static const field open_fields[] = {
    OPEN_HEAD,
    {PLAIN(msg_open, accepted_wanted, FIELD_BOOL), LEFT_OUT(msg_open, accepted_wanted)},
};
static const field part_fields[] = {OPEN_HEAD, LENGTH(msg_open, total, 1)};

#define STATE_HEAD(lo) LENGTH(msg_state, length, lo), OF(msg_state, hash, FIELD_BIN16)
static const field state_fields[] = {STATE_HEAD(1)};
static const field desync_fields[] = {STATE_HEAD(0), OF(msg_state, reason, FIELD_STR)};

static const field request_fields[] = {
    LIST(msg_feature_request, taps, FIELD_I32, tap_count, WIRE_TAPS_MAX, WIRE_TAP_MAX, false),
    INT(msg_feature_request, type, FIELD_ENUM, WIRE_BF16, WIRE_F32),
    OF(msg_feature_request, fc, FIELD_BIN16),
    LENGTH(msg_feature_request, from, 0),
    INT(msg_feature_request, horizon, FIELD_I32, 0, WIRE_HORIZON_MAX),
};
static const field_group request_group = GROUP(request_fields);
static const field attach_fields[] = {
    STATE_HEAD(1),
    OF(msg_state, ticket, FIELD_BIN16),
    U32(msg_state, generation),
    {PLAIN(msg_state, request, FIELD_GROUP), .group = &request_group, LEFT_OUT(msg_state, request.tap_count)},
};

static const field grant_fields[] = {
    INT(msg_feature_grant, width, FIELD_I32, 1, WIRE_FEATURE_WIDTH_MAX),
    INT(msg_feature_grant, type, FIELD_ENUM, WIRE_BF16, WIRE_F32),
    OF(msg_feature_grant, fused, FIELD_BOOL),
    LENGTH(msg_feature_grant, from, 0),
};
static const field_group grant_group = GROUP(grant_fields);
static const field attached_fields[] = {
    STATE_HEAD(1),
    U32(msg_state, generation),
    {PLAIN(msg_state, grant, FIELD_GROUP), .group = &grant_group, LEFT_OUT(msg_state, grant.width)},
};
static const field detach_fields[] = {OF(msg_state, reason, FIELD_STR)};

/* Of the same struct as the fields around it. */
static const field wanted_fields[] = {
    {PLAIN(msg_tokens, logprob_tokens, FIELD_I32), .min = -1, .max = INT32_MAX, .list = true,
     .count_offset = offsetof(msg_tokens, logprob_count),
     .count_max = WIRE_LOGPROBS_MAX * WIRE_LOGPROBS_BURST},
    LIST(msg_tokens, logprobs, FIELD_F32, logprob_count, WIRE_LOGPROBS_MAX *WIRE_LOGPROBS_BURST, 0, true),
    {PLAIN(msg_tokens, plain_us, FIELD_U32), .max = UINT32_MAX, LEFT_OUT(msg_tokens, plain_us)},
};
static const field_group wanted_group = GROUP(wanted_fields);
#define WANTED_SIZE (sizeof(int32_t) + sizeof(uint32_t)) /* of what is zero where nothing was asked for */
_Static_assert(offsetof(msg_tokens, plain_us) + sizeof(uint32_t) ==
                   offsetof(msg_tokens, logprob_count) + WANTED_SIZE,
               "the count and the time lie one behind the other");

static const field tokens_fields[] = {
    LENGTH(msg_tokens, base_length, 1),
    TOKEN_LIST(msg_tokens, tokens, token_count, WIRE_BURST_MAX),
    OF(msg_tokens, hash, FIELD_BIN16),
    BLOB(msg_tokens, accepted, accepted_size, MSG_ACCEPTED_SIZE(WIRE_BURST_MAX)),
    {.name = "wanted",
     .kind = FIELD_GROUP,
     .group = &wanted_group,
     .absent_offset = offsetof(msg_tokens, logprob_count),
     .absent_size = WANTED_SIZE},
};

static const field resend_fields[] = {LENGTH(msg_resend, from, 1)};

static const field nodes_fields[] = {
    U32(msg_nodes, generation),
    LENGTH(msg_nodes, base_length, 1),
    OF(msg_nodes, base_hash, FIELD_BIN16),
    INT(msg_nodes, first_id, FIELD_U64, 1, INT64_MAX),
    LIST(msg_nodes, parents, FIELD_U64, count, WIRE_NODES_MAX, UINT64_MAX, false),
    LIST(msg_nodes, tokens, FIELD_I32, count, WIRE_NODES_MAX, INT32_MAX, true),
    LIST(msg_nodes, scores, FIELD_SCORE, count, WIRE_NODES_MAX, 0, true),
    OF(msg_nodes, done, FIELD_BOOL),
    {PLAIN(msg_nodes, features, FIELD_I32), .max = WIRE_CONTEXT_MAX, LEFT_OUT(msg_nodes, features)},
};

static const field features_fields[] = {
    LENGTH(msg_features, base, 0),
    INT(msg_features, count, FIELD_I32, 0, WIRE_FEATURE_ROWS_MAX),
    INT(msg_features, width, FIELD_I32, 1, WIRE_FEATURE_WIDTH_MAX),
    INT(msg_features, type, FIELD_ENUM, WIRE_BF16, WIRE_F32),
    BLOB(msg_features, rows, size, WIRE_FEATURES_MAX),
};

static const field reset_fields[] = {U32(msg_reset, generation)};

/* Of the same struct as the counts around it. */
static const field ahead_fields[] = {
    U64(msg_stats, verdicts),
    U64(msg_stats, ahead_hits),
    U64(msg_stats, survivors),
};
static const field_group ahead_group = GROUP(ahead_fields);

static const field stats_fields[] = {
    U64(msg_stats, forwards),
    U64(msg_stats, rounds),
    U64(msg_stats, rows),
    U64(msg_stats, accepted),
    U64(msg_stats, rewound),
    U64(msg_stats, prefill_us),
    U64(msg_stats, queue_us),
    U64(msg_stats, forward_us),
    U64(msg_stats, accept_us),
    U64(msg_stats, commit_us),
    U64(msg_stats, wait_us),
    U64(msg_stats, plain_steps),
    U64(msg_stats, resets),
    U64(msg_stats, dropped),
    LIST(msg_stats, accepted_per_pos, FIELD_U64, position_count, WIRE_POSITIONS_MAX, UINT64_MAX, false),
    {.name = "ahead", .kind = FIELD_GROUP, .group = &ahead_group, LEFT_OUT(msg_stats, verdicts)},
};
static const field_group stats_group = GROUP(stats_fields);

static const field number_fields[] = {U32(msg_done, off), U32(msg_done, plain_us)};
static const field_group number_group = GROUP(number_fields);
#define NUMBERS_SIZE (2 * sizeof(uint32_t)) /* of what is zero where there are none */
_Static_assert(offsetof(msg_done, plain_us) == offsetof(msg_done, off) + sizeof(uint32_t),
               "the numbers lie one behind the other");

static const field done_fields[] = {
    LENGTH(msg_done, length, 1),
    OF(msg_done, hash, FIELD_BIN16),
    INT(msg_done, finish, FIELD_ENUM, WIRE_FINISH_STOP, WIRE_FINISH_ERROR),
    INT(msg_done, code, FIELD_ENUM, INT32_MIN, 0),
    OF(msg_done, text, FIELD_STR),
    OF(msg_done, off_reason, FIELD_STR),
    {PLAIN(msg_done, stats, FIELD_GROUP), .group = &stats_group},
    {.name = "numbers",
     .kind = FIELD_GROUP,
     .group = &number_group,
     .absent_offset = offsetof(msg_done, off),
     .absent_size = NUMBERS_SIZE},
};

static const field ended_fields[] = {{.name = "existed", .kind = FIELD_BOOL}};

#define BROKEN(code, ...) (snprintf(bad, SHAPE_BAD_MAX, __VA_ARGS__), (code))

static bool id_is_zero(wire_id id) {
  hash16 h;
  for (int i = 0; i < 16; i++) h.bytes[i] = id.bytes[i];
  return hash_is_zero(h);
}

static int check_hello(const msg *m, char bad[SHAPE_BAD_MAX]) {
  if (id_is_zero(m->u.hello.incarnation))
    return BROKEN(ERR_PROTOCOL, "R-HELLO-INCARNATION: the incarnation is zero");
  return ERR_OK;
}

static int check_welcome(const msg *m, char bad[SHAPE_BAD_MAX]) {
  const msg_hello *h = &m->u.hello;
  if (h->version_min != h->version_max)
    return BROKEN(ERR_PROTOCOL, "R-WELCOME-VERSION: versions %u and %u differ, the one chosen is given twice",
                  h->version_min, h->version_max);
  return check_hello(m, bad);
}

static int check_error(const msg *m, char bad[SHAPE_BAD_MAX]) {
  if (m->u.error.code == 0) return BROKEN(ERR_PROTOCOL, "R-ERROR-CODE: an ERROR has code 0");
  return ERR_OK;
}

static int check_ping(const msg *m, char bad[SHAPE_BAD_MAX]) {
  if (m->u.ping.load != 0)
    return BROKEN(ERR_PROTOCOL, "R-PING-LOAD: a PING has load %d, not 0", m->u.ping.load);
  return ERR_OK;
}

static int check_open(const msg *m, char bad[SHAPE_BAD_MAX]) {
  const msg_open *o = &m->u.open;
  int32_t length = o->base_length + o->token_count, whole = msg_open_length(o);
  if (o->base_length == 0 && !hash_is_zero(o->base_hash))
    return BROKEN(ERR_PROTOCOL, "R-OPEN-BASE: base_length is 0 but base_hash is not zero");
  if (length == 0)
    return BROKEN(ERR_PROTOCOL, "R-OPEN-EMPTY: the prefix is empty, a session holds at least one token");
  if (length > WIRE_CONTEXT_MAX)
    return BROKEN(ERR_LIMIT, "R-OPEN-LENGTH: base_length %d and %d tokens pass %d", o->base_length,
                  o->token_count, WIRE_CONTEXT_MAX);
  if (o->prompt_length > whole)
    return BROKEN(ERR_PROTOCOL, "R-OPEN-PROMPT: prompt_length %d is beyond the prefix of %d tokens",
                  o->prompt_length, whole);
  if ((o->target_endpoint.size == 0) != id_is_zero(o->target_incarnation))
    return BROKEN(ERR_PROTOCOL,
                  "R-OPEN-TARGET: target_endpoint and target_incarnation are given both or neither");
  return ERR_OK;
}

static int check_part(const msg *m, char bad[SHAPE_BAD_MAX]) {
  const msg_open *o = &m->u.open;
  if (o->base_length + o->token_count < o->total) return check_open(m, bad);
  return BROKEN(ERR_PROTOCOL, "R-PART-TOTAL: the total of %d is not beyond base_length %d and %d tokens",
                o->total, o->base_length, o->token_count);
}

static int check_desync(const msg *m, char bad[SHAPE_BAD_MAX]) {
  if (m->u.state.length == 0 && !hash_is_zero(m->u.state.hash))
    return BROKEN(ERR_PROTOCOL, "R-DESYNC-HASH: length is 0 but the hash is not zero");
  return ERR_OK;
}

static int check_tokens(const msg *m, char bad[SHAPE_BAD_MAX]) {
  const msg_tokens *t = &m->u.tokens;
  if (t->base_length + t->token_count > WIRE_CONTEXT_MAX)
    return BROKEN(ERR_LIMIT, "R-TOKENS-LENGTH: base_length %d and %d tokens pass %d", t->base_length,
                  t->token_count, WIRE_CONTEXT_MAX);
  if (t->logprob_count > 0 && (t->token_count == 0 || t->logprob_count % t->token_count != 0 ||
                               t->logprob_count / t->token_count > WIRE_LOGPROBS_MAX))
    return BROKEN(ERR_PROTOCOL, "R-TOKENS-LOGPROBS: %d tokens have %d log-probabilities", t->token_count,
                  t->logprob_count);
  uint32_t size = MSG_ACCEPTED_SIZE((uint32_t)t->token_count), rest = (uint32_t)t->token_count % 8;
  if (t->accepted_size == 0) return ERR_OK;
  if (t->accepted_size != size)
    return BROKEN(ERR_PROTOCOL,
                  "R-TOKENS-ACCEPTED: accepted has %u bytes, but must have 0 or %u for %d tokens",
                  t->accepted_size, size, t->token_count);
  if (rest && t->accepted[size - 1] >> rest)
    return BROKEN(ERR_PROTOCOL, "R-TOKENS-ACCEPTED: accepted has bits beyond its %d tokens", t->token_count);
  return ERR_OK;
}

static int check_nodes(const msg *m, char bad[SHAPE_BAD_MAX]) {
  const msg_nodes *n = &m->u.nodes;
  for (int32_t i = 0; i < n->count; i++) {
    uint64_t id = n->first_id + (uint64_t)i;
    if (n->parents[i] >= id)
      return BROKEN(ERR_PROTOCOL, "R-NODES-PARENT: parents[%d] is %llu, not below its own id %llu", i,
                    (unsigned long long)n->parents[i], (unsigned long long)id);
  }
  return ERR_OK;
}

static int check_features(const msg *m, char bad[SHAPE_BAD_MAX]) {
  const msg_features *f = &m->u.features;
  uint64_t size = (uint64_t)f->count * (uint64_t)f->width * wire_type_size(f->type);
  if (f->base + f->count > WIRE_CONTEXT_MAX)
    return BROKEN(ERR_LIMIT, "R-FEATURES-LENGTH: base %d and %d rows pass %d", f->base, f->count,
                  WIRE_CONTEXT_MAX);
  if (f->size != size)
    return BROKEN(ERR_PROTOCOL, "R-FEATURES-SIZE: %d rows of %d values are %llu bytes, not %u", f->count,
                  f->width, (unsigned long long)size, f->size);
  return ERR_OK;
}

static int check_done(const msg *m, char bad[SHAPE_BAD_MAX]) {
  const msg_done *d = &m->u.done;
  if ((d->finish == WIRE_FINISH_ERROR) != (d->code != 0))
    return BROKEN(ERR_PROTOCOL,
                  "R-DONE-CODE: finish is %d and code %d: code is non-zero for finish error alone",
                  (int)d->finish, d->code);
  return ERR_OK;
}

#define SHAPE(type, fields, to, session, check)                                                              \
  [MSG_##type] = {#type, GROUP(fields), ENVELOPE_##to, ENVELOPE_##session, check}
#define SHAPE_BARE(type, session)                                                                            \
  [MSG_##type] = {#type, {NULL, 0}, ENVELOPE_NONZERO, ENVELOPE_##session, NULL}

static const fields_shape shapes[] = {
    SHAPE(HELLO, hello_fields, ZERO, ZERO, check_hello),
    SHAPE(WELCOME, welcome_fields, NONZERO, ZERO, check_welcome),
    SHAPE(ERROR, error_fields, ANY, ANY, check_error),
    SHAPE(PING, ping_fields, NONZERO, ZERO, check_ping),
    SHAPE(PONG, ping_fields, NONZERO, ZERO, NULL),
    SHAPE_BARE(BYE, ZERO),
    SHAPE(OPEN, open_fields, NONZERO, NONZERO, check_open),
    SHAPE(OPENED, state_fields, NONZERO, NONZERO, NULL),
    SHAPE_BARE(END, NONZERO),
    SHAPE(ENDED, ended_fields, NONZERO, NONZERO, NULL),
    SHAPE(PART, part_fields, NONZERO, NONZERO, check_part),
    SHAPE(DESYNC, desync_fields, NONZERO, NONZERO, check_desync),
    SHAPE(TOKENS, tokens_fields, NONZERO, NONZERO, check_tokens),
    SHAPE(ACK, state_fields, NONZERO, NONZERO, NULL),
    SHAPE(RESEND, resend_fields, NONZERO, NONZERO, NULL),
    SHAPE(DONE, done_fields, NONZERO, NONZERO, check_done),
    SHAPE(ATTACH, attach_fields, NONZERO, NONZERO, NULL),
    SHAPE(ATTACHED, attached_fields, NONZERO, NONZERO, NULL),
    SHAPE(NODES, nodes_fields, NONZERO, NONZERO, check_nodes),
    SHAPE(TREE_RESET, reset_fields, NONZERO, NONZERO, NULL),
    SHAPE(DETACH, detach_fields, NONZERO, NONZERO, NULL),
    SHAPE(FEATURES, features_fields, NONZERO, NONZERO, check_features),
};

const fields_shape *fields_shape_of(uint64_t type) {
  return type < ARRAY_COUNT(shapes) && shapes[type].name ? &shapes[type] : NULL;
}

size_t field_element_size(field_kind kind) {
  return kind == FIELD_U64 ? sizeof(uint64_t) : sizeof(uint32_t);
}

bool field_is_absent(const field *f, const char *base) {
  static const char zero[FIELD_ABSENT_MAX];
  assert(f->absent_size <= sizeof zero);
  return f->absent_size > 0 && memcmp(base + f->absent_offset, zero, f->absent_size) == 0;
}
