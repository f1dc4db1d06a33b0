#include "target_worker/feature_stream.h"

#include "common/base/log.h"
#include "common/base/min.h"

/* Frames that were not acknowledged by NODES that came so much later were lost. */
#define LOST_AFTER_US 1000000

/* --- granting --- */

static int32_t first_position(const session *s, const msg_feature_request *r) {
  int32_t from = s->committed.length - WIRE_FEATURE_ROWS_MAX;
  if (from < r->from) from = r->from;
  return from > s->cache.rows ? from : s->cache.rows; /* no row is computed twice */
}

int feature_stream_grant(step_context *c, session *s, session_draft *d, const msg_feature_request *r,
                         err *e) {
  taps_set wanted;
  session_features *f = &s->drafts.features;
  if (r->tap_count == 0) return ERR_OK;
  int rc = taps_grant(&c->store->taps, r, &wanted, e);
  if (rc != ERR_OK || wanted.count == 0) return rc;
  if (f->taps.count > 0 && !taps_equal(&f->taps, &wanted)) {
    actions_log(c->out, LOG_WARNING, "session %016llx: a draft gets no features: another one reads others",
                (unsigned long long)s->id);
    return ERR_OK;
  }
  if (f->taps.count == 0 && feature_ring_init(&f->ring, taps_row_bytes(&wanted)) != ERR_OK) {
    actions_log(c->out, LOG_WARNING, "session %016llx: a draft gets no features: out of memory",
                (unsigned long long)s->id);
    return ERR_OK;
  }
  f->taps = wanted;
  d->features.granted = true;
  d->features.from = d->features.sent = d->features.acked = first_position(s, r);
  return ERR_OK;
}

/* --- rows --- */

int32_t feature_stream_from(const session *s) {
  int32_t from = INT32_MAX;
  for (const session_draft *d = s->drafts.of; d < s->drafts.of + SESSION_DRAFTS_MAX; d++)
    if (d->peer && d->features.granted) from = min_i32(from, d->features.from);
  return from;
}

void feature_stream_add(session *s, const engine_result *r) {
  session_features *f = &s->drafts.features;
  if (f->taps.count > 0 && r->feature_count > 0 && r->feature_bytes == f->ring.row_bytes)
    feature_ring_add(&f->ring, r->feature_base, r->feature_count, r->features);
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
}

static void flush_draft(step_context *c, session *s, session_draft *d) {
  const session_features *f = &s->drafts.features;
  const int32_t frame_rows = min_i32((int32_t)(WIRE_FEATURES_MAX / f->ring.row_bytes), WIRE_FEATURE_ROWS_MAX);
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

static void flush_session(step_context *c, session *s) {
  int32_t needed = INT32_MAX;
  for (session_draft *d = s->drafts.of; d < s->drafts.of + SESSION_DRAFTS_MAX; d++) {
    if (!d->peer || !d->features.granted) continue;
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

void feature_stream_acked(step_context *c, session_draft *d, int32_t features) {
  bool lost = c->now - d->features.sent_us > LOST_AFTER_US;
  int32_t acked = lost ? d->features.sent : min_i32(features, d->features.sent);
  if (acked > d->features.acked) d->features.acked = acked;
}
