#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/fake_service.h"
#include "tests/support/random.h"

int32_t unwritten;
static int32_t written;
static int32_t (*memory_durable)(void *self, uint64_t session);
static int (*memory_begin)(void *self, const ledger_record *r);
static service *watched;

int32_t slow_durable(void *self, uint64_t session) {
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

const flag_values *service_flags(const service *s) {
  return &s->workers;
}

const char *service_address(const service *s) {
  (void)s;
  return "tcp://127.0.0.1:1";
}

/* ---- the world ---- */

void fake_service_add_target(service *s) {
  msg hello = hello_message(MSG_HELLO, WIRE_ROLE_TARGET, id_of(TARGET));
  hello.u.hello.model_fingerprint.bytes[0] = 10;
  hello.u.hello.endpoint = wire_text("tcp://127.0.0.1:4000");
  hello.u.hello.numerics_id = wire_text("test");
  hello.u.hello.session_max = 4;
  hello.u.hello.context_max = CONTEXT;
  rig_say(&s->r, TARGET, hello);
}

void fake_service_begin(service *s) {
  err e = {0};
  *s = (service){.random = 1, .workers = {.draft = "none", .math = 1}};
  unwritten = 0;
  written = 1; /* the beginning */
  watched = s;
  assert_int_equal(ledger_memory(&s->memory), ERR_OK);
  memory_durable = s->memory.durable;
  memory_begin = s->memory.begin;
  sessions_options o = {
      .incarnation = SELF, .random = random_source, .random_context = &s->random, .ledger = s->memory};
  o.model_fingerprint.bytes[0] = 10;
  o.ledger.durable = slow_durable;
  o.ledger.begin = watched_begin;
  assert_int_equal(sessions_alloc(&s->o, &o, &e), ERR_OK);
  rig_init(&s->r, sessions_as_machine(s->o));
  fake_service_add_target(s);
}

void fake_service_end(service *s) {
  rig_fini(&s->r);
  sessions_free(s->o);
  s->memory.close(s->memory.self);
}

opened fake_service_open_session(service *s) {
  const msg *m = rig_last(&s->r, TARGET, MSG_OPEN);
  opened o = {m->session, m->u.open.hash_seed, m->epoch};
  rig_say(&s->r, TARGET,
          state_message(MSG_OPENED, SELF, m->session, m->epoch, m->u.open.token_count, m->u.open.hash));
  rig_clear(&s->r);
  return o;
}
