#include "target_worker/feature_stream.h"

#include "common/base/log.h"
#include "common/base/min.h"
#include "target_worker/feature_fusion.h"

/* Frames that were not acknowledged by NODES that came so much later were lost. */
#define LOST_AFTER_US 1000000

/* Rows that are there already have no features: they are computed again. So many known positions before the
 * end of C make a head about as good as all of them do, */
#define KNOWN_ENOUGH 128
/* and a token that may still come is worth so many rows (docs/decisions/drafts.md). */
#define ROWS_A_TOKEN 1
/* A session's rows are computed again at most so often, however often its drafts attach. */
#define REPEAT_EVERY_US 1000000

/* A draft whose replies come so late that no head's guess reaches so far is told that it gets no features for
 * the next so many positions. */
#define WITHHELD_ROWS 64

/* --- granting --- */

static int32_t max_i32(int32_t a, int32_t b) {
  return a > b ? a : b;
}

/* Does a draft that kept its rows lack one alone, which was computed while it was away? Without it the head
 * would drop all that it knows of the text. */
static bool lacks_one(const session *s, int32_t from) {
  return from > 0 && from == s->cache.rows - 1;
}

/* The first position that is worth computing again for a draft that knows what is before `from`. */
static int32_t repeatable(const step_context *c, const session *s, int32_t from) {
  const session_features *f = &s->drafts.features;
  const speculation_shared *costs = c->store->speculation;
  int32_t rows = s->cache.rows, enough = KNOWN_ENOUGH;
  if (costs)
    enough = speculation_repeat_rows(&s->speculation, costs, session_room(s), rows, KNOWN_ENOUGH,
                                     session_has_begun(s));
  int32_t known = s->committed.length - 1 - enough;
  if (f->repeated_us && c->now - f->repeated_us < REPEAT_EVERY_US) return rows;
  if (s->speculation.disabled) return rows;
  if (lacks_one(s, from)) return from;
  if (s->committed.length < f->repeat_after) return rows;
  return max_i32(0, min_i32(rows, max_i32(known, rows - ROWS_A_TOKEN * session_room(s))));
}

static int32_t first_position(const step_context *c, const session *s, const msg_feature_request *r) {
  int32_t wanted = max_i32(r->from, s->committed.length - WIRE_FEATURE_ROWS_MAX);
  return max_i32(wanted, repeatable(c, s, wanted));
}

/* A job that is under way does not tap the rows that it computes: they come again, too. */
static void plan_repeat(session *s, int32_t from) {
  session_features *f = &s->drafts.features;
  if (from >= s->cache.rows && !s->job.serial) return;
  f->repeat_from = f->repeats ? min_i32(f->repeat_from, from) : from;
  f->repeats = true;
}

/* Where fc is applied here, its states have a ring, too. */
static bool make_rings(const session_store *store, session_features *f, const taps_set *wanted) {
  size_t columns = (size_t)wanted->count * (size_t)store->taps.embed;
  feature_ring *states = &f->fusion.states;
  if (feature_ring_init(&f->ring, taps_row_bytes(wanted), WIRE_FEATURE_ROWS_MAX) != ERR_OK) return false;
  if (!wanted->fused) return true;
  if (feature_ring_init(states, columns * sizeof(float), FEATURE_FUSION_ROWS) == ERR_OK) return true;
  feature_ring_fini(&f->ring);
  return false;
}

int feature_stream_grant(step_context *c, session *s, session_draft *d, const msg_feature_request *r,
                         err *e) {
  taps_set wanted;
  session_features *f = &s->drafts.features;
  if (r->tap_count == 0) return ERR_OK;
  int rc = taps_grant(&c->store->taps, r, &wanted, e);
  if (rc != ERR_OK || wanted.count == 0) return rc;
  if (f->taps.count > 0 && !taps_equal(&f->taps, &wanted)) {
    roster_log(c->peers, d->peer, c->now, LOG_WARNING, c->out,
               "session %016llx: a draft gets no features: another one reads others",
               (unsigned long long)s->id);
    return ERR_OK;
  }
  if (f->taps.count == 0 && !make_rings(c->store, f, &wanted)) {
    roster_log(c->peers, d->peer, c->now, LOG_WARNING, c->out,
               "session %016llx: a draft gets no features: out of memory", (unsigned long long)s->id);
    return ERR_OK;
  }
  f->taps = wanted;
  d->features.granted = true;
  d->features.from = d->features.sent = d->features.acked = first_position(c, s, r);
  plan_repeat(s, d->features.from);
  return ERR_OK;
}

/* --- rows --- */

int32_t feature_stream_from(const session *s) {
  int32_t from = INT32_MAX;
  for (const session_draft *d = s->drafts.of; d < s->drafts.of + SESSION_DRAFTS_MAX; d++)
    if (d->peer && d->features.granted) from = min_i32(from, d->features.from);
  return from;
}

/* Of rows that are there and have no features, a draft is told that they are lost. */
static void lose_rows(session *s) {
  feature_ring *ring = &s->drafts.features.ring;
  if (feature_fusion_waits(s)) return; /* they come yet */
  if (ring->end < s->cache.rows) ring->first = ring->end = s->cache.rows;
}

void feature_stream_add(session *s, const engine_result *r) {
  session_features *f = &s->drafts.features;
  if (f->taps.count == 0) return;
  if (r->states) {
    feature_fusion_keep(s, r);
    return;
  }
  if (r->features && r->feature_bytes == f->ring.row_bytes)
    feature_ring_add(&f->ring, r->feature_base, r->feature_count, r->features);
  if (!f->repeats) lose_rows(s);
}

static void repeat_rows(step_context *c, session *s) {
  session_features *f = &s->drafts.features;
  if (!f->repeats || s->job.serial || feature_fusion_pending(s)) return;
  int32_t from = max_i32(f->repeat_from, repeatable(c, s, f->repeat_from)), before = s->cache.rows;
  f->repeats = false;
  if (from < before && session_store_rewind(c->store, s, from)) {
    f->repeated_us = c->now;
    if (c->store->speculation && session_has_begun(s))
      speculation_repeated(&s->speculation, c->store->speculation, before - s->cache.rows, s->cache.rows);
    f->repeat_after = s->committed.length + (before - s->cache.rows) / ROWS_A_TOKEN;
    feature_ring_clear(&f->fusion.states);
    f->ring.first = f->ring.end = s->cache.rows; /* all of these come again */
  } else {
    lose_rows(s);
  }
}

/* --- sending --- */

static void send_rows(step_context *c, const session *s, const session_draft *d, int32_t base, int32_t count,
                      const uint8_t *rows) {
  const session_features *f = &s->drafts.features;
  msg m = roster_message(c->peers, d->peer, MSG_FEATURES, s->id, s->epoch);
  m.u.features = (msg_features){.base = base,
                                .count = count,
                                .width = f->taps.width,
                                .type = f->taps.type,
                                .rows = rows,
                                .size = (uint32_t)((size_t)count * f->ring.row_bytes)};
  actions_send(c->out, d->peer, &m);
}

/* How many rows may go to this draft now. */
static int32_t credit(const session_features *f, const session_draft *d) {
  int32_t most = (int32_t)(WIRE_FEATURES_CREDIT / f->ring.row_bytes),
          way = d->features.sent - d->features.acked;
  if (most == 0) most = 1;
  return most > way ? most - way : 0;
}

/* It waits for rows that are gone, and gets none for the moment. */
static void send_lost(step_context *c, const session *s, session_draft *d) {
  const feature_ring *ring = &s->drafts.features.ring;
  if (d->features.sent >= ring->first) return;
  send_rows(c, s, d, ring->first, 0, NULL);
  d->features.acked += ring->first - d->features.sent; /* these took no credit */
  d->features.sent = ring->first;
  d->features.sent_us = c->now;
}

static void flush_draft(step_context *c, session *s, session_draft *d) {
  const session_features *f = &s->drafts.features;
  const int32_t frame_rows = min_i32((int32_t)(WIRE_FEATURES_MAX / f->ring.row_bytes), WIRE_FEATURE_ROWS_MAX);
  if (d->sent < f->ring.first && d->features.sent < f->ring.first) return; /* TOKENS come before */
  send_lost(c, s, d);
  int32_t end = min_i32(f->ring.end, d->sent), left = credit(f, d);
  while (d->features.sent < end && left > 0) {
    int32_t count;
    const uint8_t *rows = feature_ring_get(&f->ring, d->features.sent, end, &count);
    count = min_i32(min_i32(count, frame_rows), left);
    send_rows(c, s, d, d->features.sent, count, rows);
    d->features.sent += count;
    d->features.sent_us = c->now;
    left -= count;
  }
}

static bool comes_late(const session *s) {
  return !s->request.options.lockstep && speculation_comes_late(&s->speculation);
}

/* It goes on without a head, and none of these rows costs anything. */
static void withhold(step_context *c, const session *s, session_draft *d) {
  int32_t length = s->committed.length, context = s->request.options.context;
  if (d->features.sent >= min_i32(length + WITHHELD_ROWS / 2, context)) return;
  int32_t base = min_i32(length + WITHHELD_ROWS, context);
  send_rows(c, s, d, base, 0, NULL);
  d->features.acked += base - d->features.sent;
  d->features.from = d->features.sent = base;
  d->features.sent_us = c->now;
}

static void flush_session(step_context *c, session *s) {
  int32_t needed = INT32_MAX;
  /* Its draft would compute with them; they wait in the ring. */
  if (speculation_is_quiet(&s->speculation) && !s->request.options.lockstep) return;
  bool late = comes_late(s);
  if (late) s->drafts.features.repeats = false;
  repeat_rows(c, s);
  if (s->drafts.features.repeats) return; /* what seems to be lost is to come again */
  for (session_draft *d = s->drafts.of; d < s->drafts.of + SESSION_DRAFTS_MAX; d++) {
    if (!d->peer || !d->features.granted) continue;
    if (late && !speculation_is_off(&s->speculation)) withhold(c, s, d);
    flush_draft(c, s, d);
    needed = min_i32(needed, d->features.sent);
  }
  feature_ring_trim(&s->drafts.features.ring, needed);
}

void feature_stream_flush(step_context *c) {
  for (int32_t i = 0; i < c->store->count; i++) {
    session *s = &c->store->slots[i];
    if (s->state == SESSION_RUNNING && s->drafts.features.taps.count > 0) flush_session(c, s);
  }
}

void feature_stream_acked(step_context *c, const session *s, session_draft *d, int32_t features) {
  bool any = d->features.sent_us > 0, late = c->now - d->features.sent_us > LOST_AFTER_US;
  bool lost = any && late && features < d->features.sent;
  int32_t acked = lost ? d->features.sent : min_i32(features, d->features.sent);
  if (acked > d->features.acked) d->features.acked = acked;
  if (!lost) return;
  send_rows(c, s, d, d->features.sent, 0, NULL); /* it may be waiting for them */
  d->features.sent_us = c->now;
}
