/* fake_service.h - what stands behind service.h in tests of completions: the real sessions over a ledger in
 * memory, without programs or sockets; the test is the target. One at a time. Linked before the service's own
 * functions. */
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
  worker_settings workers;
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

uint64_t service_start(service *s, const sessions_request *r, err *e) {
  return sessions_start(s->o, r, s->r.now, &s->r.out, e);
}

void service_release(service *s, uint64_t session) {
  sessions_release(s->o, session, s->r.now, &s->r.out);
}

bool service_look(const service *s, uint64_t session, sessions_view *out) {
  return sessions_get(s->o, session, out);
}

void service_cancel(service *s, uint64_t session) {
  sessions_cancel(s->o, session, s->r.now, &s->r.out);
}

trace_file *service_trace(const service *s) {
  (void)s;
  return NULL;
}

int service_signal(const service *s) {
  return s->signal;
}

bool service_trouble_explained(const service *s) {
  (void)s;
  return false;
}

int service_trouble(const service *s, err *e) {
  if (e) *e = s->trouble;
  return s->trouble.code;
}

bool service_kept(const service *s) {
  return !s->lost;
}

const worker_settings *service_worker_settings(const service *s) {
  return &s->workers;
}

const char *service_address(const service *s) {
  (void)s;
  return "tcp://127.0.0.1:1";
}

/* ---- the world ---- */

static inline uint64_t next_random(void *context) { /* splitmix64 */
  uint64_t *state = context, x = *state += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

static inline void fake_service_add_target(service *s) {
  msg hello = hello_message(MSG_HELLO, WIRE_ROLE_TARGET, id_of(TARGET));
  hello.u.hello.model_fingerprint.bytes[0] = 10;
  hello.u.hello.endpoint = wire_text("tcp://127.0.0.1:4000");
  hello.u.hello.numerics_id = wire_text("test");
  hello.u.hello.session_max = 4;
  hello.u.hello.context_max = CONTEXT;
  rig_say(&s->r, TARGET, hello);
}

static inline void fake_service_begin(service *s) {
  err e = {0};
  *s = (service){.random = 1, .workers = {.draft = "none", .math = "int8"}};
  unwritten = 0;
  written = 1; /* the beginning */
  watched = s;
  assert_int_equal(ledger_memory(&s->memory), ERR_OK);
  memory_durable = s->memory.durable;
  memory_begin = s->memory.begin;
  sessions_options o = {
      .incarnation = SELF, .random = next_random, .random_context = &s->random, .ledger = s->memory};
  o.model_fingerprint.bytes[0] = 10;
  o.ledger.durable = slow_durable;
  o.ledger.begin = watched_begin;
  assert_int_equal(sessions_alloc(&s->o, &o, &e), ERR_OK);
  rig_init(&s->r, sessions_as_machine(s->o));
  fake_service_add_target(s);
}

static inline void fake_service_end(service *s) {
  rig_fini(&s->r);
  sessions_free(s->o);
  s->memory.close(s->memory.self);
}

/* Takes the OPEN that was sent last, and answers it. */
typedef struct opened {
  uint64_t session, seed;
  uint32_t epoch;
} opened;

static inline opened fake_service_open_session(service *s) {
  const msg *m = rig_last(&s->r, TARGET, MSG_OPEN);
  opened o = {m->session, m->u.open.hash_seed, m->epoch};
  rig_say(&s->r, TARGET,
          state_message(MSG_OPENED, SELF, m->session, m->epoch, m->u.open.token_count, m->u.open.hash));
  rig_clear(&s->r);
  return o;
}
