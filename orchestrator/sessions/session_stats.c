#include "orchestrator/sessions/session_stats.h"

/* Every count of msg_stats but accepted_per_pos. */
/* clang-format off: a row each */
#define SUMS(X)                                                                                              \
  X(forwards)                                                                                                \
  X(rounds)                                                                                                  \
  X(rows)                                                                                                    \
  X(accepted)                                                                                                \
  X(rewound)                                                                                                 \
  X(prefill_us)                                                                                              \
  X(queue_us)                                                                                                \
  X(forward_us)                                                                                              \
  X(accept_us)                                                                                               \
  X(commit_us)                                                                                               \
  X(wait_us)                                                                                                 \
  X(plain_steps)                                                                                             \
  X(resets)                                                                                                  \
  X(dropped)                                                                                                 \
  X(verdicts)                                                                                                \
  X(ahead_hits)                                                                                              \
  X(survivors)
/* clang-format on */

/* sum->accepted_per_pos is per_pos. */
static void add(msg_stats *sum, uint64_t *per_pos, const msg_stats *s) {
#define ADD(name) sum->name += s->name;
  SUMS(ADD)
#undef ADD
  for (int32_t i = 0; i < s->position_count && i < WIRE_POSITIONS_MAX; i++) {
    per_pos[i] += s->accepted_per_pos[i];
    if (i >= sum->position_count) sum->position_count = i + 1;
  }
}

static void clear(msg_stats *sum, uint64_t *per_pos) {
  *sum = (msg_stats){.accepted_per_pos = per_pos};
  for (int32_t i = 0; i < WIRE_POSITIONS_MAX; i++) per_pos[i] = 0;
}

void session_stats_begin(session_stats *s, int32_t length) {
  s->from = length;
  s->reported = false;
  clear(&s->now, s->now_per_pos);
}

void session_stats_arrive(session_stats *s, wire_id incarnation) {
  s->at = incarnation;
}

void session_stats_leave(session_stats *s, peer_id target, int32_t length) {
  add(&s->before, s->before_per_pos, &s->now);
  s->before.accepted_per_pos = s->before_per_pos;
  s->left = s->reported ? 0 : target;
  s->left_at = s->at;
  s->left_tokens = s->reported ? 0 : length - s->from;
  s->missing += s->left_tokens;
  session_stats_begin(s, length);
}

/* How many tokens of earlier visits the report covers, if the target that was left last has come back: each
 * forward gives one token, and those that it accepted. */
static int32_t earlier_tokens(const session_stats *s, const msg_stats *stats, int32_t length) {
  int64_t more = (int64_t)(stats->forwards + stats->accepted) - (length - s->from);
  if (!s->left || !wire_id_equal(s->at, s->left_at) || more < s->left_tokens) return 0;
  return more < s->missing ? (int32_t)more : s->missing;
}

void session_stats_report(session_stats *s, const msg_stats *stats, int32_t length) {
  int32_t earlier = earlier_tokens(s, stats, length);
  s->missing -= earlier;
  if (earlier) s->left = 0;
  clear(&s->now, s->now_per_pos);
  add(&s->now, s->now_per_pos, stats);
  s->reported = true;
}

void session_stats_report_late(session_stats *s, peer_id target, const msg_stats *stats) {
  if (!target || s->left != target) return;
  add(&s->before, s->before_per_pos, stats);
  s->missing -= s->left_tokens;
  s->left = 0;
}

msg_stats session_stats_total(const session_stats *s, uint64_t *accepted_per_pos) {
  msg_stats sum;
  clear(&sum, accepted_per_pos);
  add(&sum, accepted_per_pos, &s->before);
  add(&sum, accepted_per_pos, &s->now);
  return sum;
}

int32_t session_stats_missing(const session_stats *s, int32_t length) {
  return s->missing + (s->reported ? 0 : length - s->from);
}
