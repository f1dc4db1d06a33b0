#include "orchestrator/sessions/session_stats.h"

/* Of msg_stats, but for accepted_per_pos. */
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
  X(dropped)
/* clang-format on */

static void add(msg_stats *sum, uint64_t per_pos[WIRE_POSITIONS_MAX], const msg_stats *s) {
#define ADD(name) sum->name += s->name;
  SUMS(ADD)
#undef ADD
  for (int32_t i = 0; i < s->position_count && i < WIRE_POSITIONS_MAX; i++) {
    per_pos[i] += s->accepted_per_pos[i];
    if (i >= sum->position_count) sum->position_count = i + 1;
  }
  sum->accepted_per_pos = per_pos;
}

static void clear(msg_stats *sum, uint64_t per_pos[WIRE_POSITIONS_MAX]) {
  *sum = (msg_stats){.accepted_per_pos = per_pos};
  for (int32_t i = 0; i < WIRE_POSITIONS_MAX; i++) per_pos[i] = 0;
}

void session_stats_begin(session_stats *f, int32_t length) {
  f->from = length;
  f->told = false;
  clear(&f->now, f->per_pos_now);
}

void session_stats_leave(session_stats *f, peer_id target, int32_t length) {
  add(&f->before, f->per_pos, &f->now);
  f->left = f->told ? 0 : target;
  f->left_tokens = f->told ? 0 : length - f->from;
  f->missing += f->left_tokens;
  session_stats_begin(f, length);
}

void session_stats_report(session_stats *f, const msg_stats *s) {
  clear(&f->now, f->per_pos_now);
  add(&f->now, f->per_pos_now, s);
  f->told = true;
}

void session_stats_report_late(session_stats *f, peer_id target, const msg_stats *s) {
  if (!target || f->left != target) return;
  add(&f->before, f->per_pos, s);
  f->missing -= f->left_tokens;
  f->left = 0;
}

msg_stats session_stats_total(session_stats *f) {
  msg_stats sum;
  clear(&sum, f->per_pos_sum);
  add(&sum, f->per_pos_sum, &f->before);
  add(&sum, f->per_pos_sum, &f->now);
  return sum;
}

int32_t session_stats_missing(const session_stats *f, int32_t length) {
  return f->missing + (f->told ? 0 : length - f->from);
}
