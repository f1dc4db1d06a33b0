/* fake_pair.h - what stands behind service.h in tests of answers: the real sessions over a ledger in memory,
 * without programs or sockets; the test is the target. One at a time. Linked before td_orch's own pair. */
#pragma once

#include "orchestrator/service/service.h"
#include "tests/machine_support.h"

enum { TARGET = 2, CONTEXT = 64 };
#define SELF id_of(100)

struct service {
  rig r;
  sessions_machine *o;
  ledger memory;
  uint64_t random;
  char about[4096]; /* of the last session */
  int signal;
  err trouble;
  bool lost; /* the ledger could not take everything */
};

/* Of a file that is slow: so many tokens of the one session are not written yet (-1: it is not slow, there
 * may be several); and those that are. */
static int32_t unwritten, written;
static int32_t (*memory_durable)(void *self, uint64_t session);
static int (*memory_begin)(void *self, const ledger_record *r);
static service *watched;

static int32_t slow_durable(void *self, uint64_t session) {
  int32_t all = memory_durable(self, session);
  if (unwritten < 0) return all;
  if (written < all - unwritten) written = all - unwritten;
  if (written > all) written = all; /* cut at the end */
  return written;
}

static int watched_begin(void *self, const ledger_record *r) {
  snprintf(watched->about, sizeof watched->about, "%s", r->about ? r->about : "");
  return memory_begin(self, r);
}

uint64_t service_start(service *p, const sessions_request *r, err *e) {
  return sessions_start(p->o, r, p->r.now, &p->r.out, e);
}

void service_release(service *p, uint64_t session) {
  sessions_release(p->o, session, p->r.now, &p->r.out);
}

bool service_look(const service *p, uint64_t session, sessions_view *out) {
  return sessions_get(p->o, session, out);
}

void service_cancel(service *p, uint64_t session) {
  sessions_cancel(p->o, session, p->r.now, &p->r.out);
}

int service_signal(const service *p) {
  return p->signal;
}

int service_trouble(const service *p, err *e) {
  if (e) *e = p->trouble;
  return p->trouble.code;
}

bool service_kept(const service *p) {
  return !p->lost;
}

/* ---- the world ---- */

static inline uint64_t next_random(void *context) { /* splitmix64 */
  uint64_t *state = context, x = *state += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

static inline void pair_begin(service *p) {
  err e = {0};
  *p = (service){.random = 1};
  unwritten = 0;
  written = 1; /* the beginning */
  watched = p;
  assert_int_equal(ledger_memory(&p->memory), ERR_OK);
  memory_durable = p->memory.durable;
  memory_begin = p->memory.begin;
  sessions_options o = {
      .incarnation = SELF, .random = next_random, .random_context = &p->random, .ledger = p->memory};
  o.model_fingerprint.bytes[0] = 10;
  o.ledger.durable = slow_durable;
  o.ledger.begin = watched_begin;
  assert_int_equal(sessions_alloc(&p->o, &o, &e), ERR_OK);
  rig_init(&p->r, sessions_as_machine(p->o));
  msg hello = hello_message(MSG_HELLO, WIRE_ROLE_TARGET, id_of(TARGET));
  hello.u.hello.model_fingerprint.bytes[0] = 10;
  hello.u.hello.endpoint = wire_text("tcp://127.0.0.1:4000");
  hello.u.hello.numerics_id = wire_text("test");
  hello.u.hello.session_max = 4;
  hello.u.hello.context_max = CONTEXT;
  rig_say(&p->r, TARGET, hello);
}

static inline void pair_end(service *p) {
  rig_fini(&p->r);
  sessions_free(p->o);
  p->memory.close(p->memory.self);
}

/* Takes the OPEN that was sent last, and answers it. */
typedef struct opened {
  uint64_t session, seed;
  uint32_t epoch;
} opened;

static inline opened pair_open_session(service *p) {
  const msg *m = rig_last(&p->r, TARGET, MSG_OPEN);
  opened o = {m->session, m->u.open.hash_seed, m->epoch};
  rig_say(&p->r, TARGET,
          state_message(MSG_OPENED, SELF, m->session, m->epoch, m->u.open.token_count, m->u.open.hash));
  rig_clear(&p->r);
  return o;
}
