/* libs: wire base */
/* Who comes in by tcp, and that nobody does while the gate is late, dead or missing. */
#include "tests/support/transport_nodes.h"
#include "wire/codec.h"
#include "wire/curve.h"
#include "wire/endpoint.h"
#include <zmq.h> /* a listener without a transport, and strangers, are built by hand */

#define TRIES 3 /* looks of 100 ms each: a handshake takes a millisecond */

/* A peer that is built by hand: sends `frame` as often as it can. */
typedef struct stranger {
  void *context, *socket;
} stranger;

static stranger stranger_call(const char *endpoint, const key_bytes *secret, const key_bytes *server) {
  stranger s = {.context = zmq_ctx_new()};
  s.socket = zmq_socket(s.context, ZMQ_DEALER);
  zmq_setsockopt(s.socket, ZMQ_LINGER, &(int){0}, sizeof(int));
  zmq_setsockopt(s.socket, ZMQ_ROUTING_ID, "stranger", 8);
  if (secret) {
    key_bytes public;
    key_public_of(secret, &public);
    assert_int_equal(zmq_setsockopt(s.socket, ZMQ_CURVE_SERVERKEY, server->bytes, KEY_BYTES), 0);
    assert_int_equal(zmq_setsockopt(s.socket, ZMQ_CURVE_PUBLICKEY, public.bytes, KEY_BYTES), 0);
    assert_int_equal(zmq_setsockopt(s.socket, ZMQ_CURVE_SECRETKEY, secret->bytes, KEY_BYTES), 0);
  }
  assert_int_equal(zmq_connect(s.socket, endpoint), 0);
  return s;
}

static void stranger_end(stranger *s) {
  zmq_close(s->socket);
  zmq_ctx_term(s->context);
}

static keys *keys_of(const char *folder, wire_role role) {
  keys *k;
  err e = {0};
  if (keys_open(&k, folder, role, &e) != ERR_OK) fail_msg("%s", e.text);
  return k;
}

/* --- a listener with a gate, or without one --- */

typedef enum { GATE_THERE, GATE_LATE, GATE_DEAD, GATE_MISSING } gate_state;

/* Messages that come through a protected listener from a draft whose key is allowed. */
static int messages_with(gate_state state) {
  keys *own = keys_of(test_keys(), WIRE_ROLE_TARGET), *draft = keys_of(test_keys(), WIRE_ROLE_DRAFT);
  void *context = zmq_ctx_new(), *router = zmq_socket(context, ZMQ_ROUTER);
  char endpoint[128];
  size_t size = sizeof endpoint;
  uv_loop_t loop;
  curve_gate *gate = NULL;
  err e = {0};
  int messages = 0;
  uv_loop_init(&loop);
  const curve_gate_options options = {
      .context = context, .loop = &loop, .own = own, .roles = KEYS_ROLE(WIRE_ROLE_DRAFT)};
  if (state != GATE_MISSING) assert_int_equal(curve_gate_open(&gate, &options, &e), ERR_OK);
  assert_true(curve_protect_listener(router, keys_secret(own)));
  assert_int_equal(zmq_bind(router, "tcp://127.0.0.1:*"), 0);
  zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &size);
  if (state == GATE_DEAD) {
    curve_gate_close(gate);
    gate = NULL;
  }
  stranger s = stranger_call(endpoint, keys_secret(draft), keys_public(own));
  zmq_setsockopt(router, ZMQ_RCVTIMEO, &(int){100}, sizeof(int));
  zmq_setsockopt(router, ZMQ_LINGER, &(int){0}, sizeof(int));
  uint64_t until_us = clock_us() + PATIENCE_US;
  for (int i = 0; messages == 0 && (state == GATE_THERE ? clock_us() < until_us : i < TRIES); i++) {
    char data[64];
    zmq_send(s.socket, "hello", 5, ZMQ_DONTWAIT);
    if (state != GATE_LATE) uv_run(&loop, UV_RUN_NOWAIT); /* a late gate is one that nobody runs */
    while (zmq_recv(router, data, sizeof data, 0) >= 0) messages++;
  }
  stranger_end(&s);
  curve_gate_close(gate);
  zmq_close(router);
  zmq_ctx_term(context);
  finish_loop(&loop);
  keys_close(own);
  keys_close(draft);
  return messages;
}

static void test_nothing_comes_in_while_the_gate_is_late_dead_or_missing(void **state) {
  (void)state;
  assert_true(messages_with(GATE_THERE) > 0);
  assert_int_equal(messages_with(GATE_LATE), 0);
  assert_int_equal(messages_with(GATE_DEAD), 0);
  assert_int_equal(messages_with(GATE_MISSING), 0);
}

/* --- a listener of a program --- */

typedef struct program {
  uv_loop_t loop;
  node n;
  char bound[ENDPOINT_MAX];
  keys *keys;
} program;

static void program_open(program *p, wire_role role) {
  err e = {0};
  *p = (program){.n = {.role = role}, .keys = keys_of(test_keys(), role)};
  uv_loop_init(&p->loop);
  node_open(&p->n, &p->loop, 1, false);
  if (transport_bind(p->n.wire, "tcp://127.0.0.1:*", p->bound, sizeof p->bound, &e)) fail_msg("%s", e.text);
}

static void program_close(program *p) {
  transport_close(p->n.wire);
  finish_loop(&p->loop);
  keys_close(p->keys);
}

static void send_hello(const stranger *s) {
  codec_buffer frame = {0};
  msg hello = hello_of();
  err e = {0};
  assert_int_equal(codec_encode(&hello, &frame, &e), ERR_OK);
  zmq_send(s->socket, frame.data, frame.size, ZMQ_DONTWAIT);
  codec_buffer_fini(&frame);
}

/* Bytes that the program decodes of a stranger's HELLOs. */
static uint64_t decoded(program *p, stranger s, uint64_t patience_ms) {
  const uint64_t before = transport_count(p->n.wire).received_bytes, heard = p->n.heard;
  for (uint64_t waited = 0; waited < patience_ms && p->n.heard == heard; waited += 50) {
    send_hello(&s);
    run_until(&p->loop, &p->n.heard, heard + 1, 50);
  }
  stranger_end(&s);
  return transport_count(p->n.wire).received_bytes - before;
}

static void test_not_a_byte_is_decoded_of_who_has_no_right_key(void **state) {
  (void)state;
  program p;
  key_bytes secret, public;
  err e = {0};
  program_open(&p, WIRE_ROLE_TARGET);
  keys *draft = keys_of(test_keys(), WIRE_ROLE_DRAFT), *target = p.keys;
  keys *orchestrator = keys_of(test_keys(), WIRE_ROLE_ORCHESTRATOR);
  const key_bytes *server = keys_public(p.keys);
  assert_int_equal(key_generate(&secret, &public, &e), ERR_OK);
  assert_int_equal(decoded(&p, stranger_call(p.bound, NULL, NULL), 300), 0);      /* no key */
  assert_int_equal(decoded(&p, stranger_call(p.bound, &secret, server), 300), 0); /* not allowed */
  assert_int_equal(decoded(&p, stranger_call(p.bound, keys_secret(draft), &public), 300),
                   0); /* wrong server */
  assert_int_equal(decoded(&p, stranger_call(p.bound, keys_secret(target), server), 300), 0); /* no draft's */
  assert_int_equal(decoded(&p, stranger_call(p.bound, keys_secret(orchestrator), server), 300), 0);
  assert_int_equal(p.n.heard, 0);
  assert_true(decoded(&p, stranger_call(p.bound, keys_secret(draft), server), WAIT_MS) > 0);
  assert_int_equal(p.n.last.u.hello.roles, KEYS_ROLE(WIRE_ROLE_DRAFT));
  keys_close(draft);
  keys_close(orchestrator);
  program_close(&p);
}

/* It goes on calling, and comes in when the line of its key has been added. */
static void test_a_key_that_is_added_comes_in(void **state) {
  (void)state;
  char path[SCRATCH_MAX + 16];
  key_bytes secret, public;
  err e = {0};
  const scratch_path_text added = scratch_path("added");
  const char *folder = added.text;
  snprintf(path, sizeof path, "%s/" KEYS_ALLOWED, folder);
  make_keys(folder);
  program p = {.n = {.role = WIRE_ROLE_ORCHESTRATOR, .keys = folder}};
  uv_loop_init(&p.loop);
  node_open(&p.n, &p.loop, 1, false);
  assert_int_equal(transport_bind(p.n.wire, "tcp://127.0.0.1:*", p.bound, sizeof p.bound, &e), ERR_OK);
  p.keys = keys_of(folder, WIRE_ROLE_ORCHESTRATOR);
  assert_int_equal(key_generate(&secret, &public, &e), ERR_OK);
  stranger s = stranger_call(p.bound, &secret, keys_public(p.keys));
  assert_false(run_until(&p.loop, &p.n.heard, 1, 200));
  FILE *f = fopen(path, "a");
  assert_non_null(f);
  fprintf(f, "draft %s late\n", key_hex_of(&public).text);
  fclose(f);
  assert_true(decoded(&p, s, WAIT_MS) > 0);
  program_close(&p);
}

/* With HANDOVER whoever comes with a routing id gets its connection. Another key is another peer, however,
 * and what was meant for the owner goes nowhere. */
static void test_a_routing_id_does_not_lead_to_the_peer_of_another_key(void **state) {
  (void)state;
  program p;
  program_open(&p, WIRE_ROLE_ORCHESTRATOR);
  keys *draft = keys_of(test_keys(), WIRE_ROLE_DRAFT), *target = keys_of(test_keys(), WIRE_ROLE_TARGET);
  stranger owner = stranger_call(p.bound, keys_secret(target), keys_public(p.keys));
  send_hello(&owner);
  assert_true(run_until(&p.loop, &p.n.heard, 1, WAIT_MS));
  const peer_id first = p.n.last_peer;
  msg secret = ping_of(7);
  stranger thief = stranger_call(p.bound, keys_secret(draft), keys_public(p.keys)); /* the same routing id */
  send_hello(&thief);
  assert_true(run_until(&p.loop, &p.n.heard, 2, WAIT_MS));
  assert_true(p.n.last_peer != first);
  assert_int_equal(p.n.last.u.hello.roles, KEYS_ROLE(WIRE_ROLE_DRAFT));
  assert_false(transport_send(p.n.wire, first, &secret));
  stranger_end(&thief);
  stranger_end(&owner);
  keys_close(draft);
  keys_close(target);
  program_close(&p);
}

/* --- whom a program calls --- */

static void cannot_call(node *n, const char *endpoint, int code, const char *text) {
  err e = {0};
  assert_int_equal(transport_connect(n->wire, endpoint, &e), 0);
  if (e.code != code || !strstr(e.text, text)) fail_msg("%s: %s: %s", endpoint, err_name(e.code), e.text);
  assert_int_equal(transport_check_call(n->wire, endpoint, &e), code);
  assert_non_null(strstr(e.text, text));
}

static void test_a_program_calls_only_whom_it_trusts(void **state) {
  (void)state;
  uv_loop_t loop;
  const scratch_path_text none = scratch_path("none/keys");
  node n = {.role = WIRE_ROLE_DRAFT}, without = {.role = WIRE_ROLE_DRAFT, .keys = none.text};
  key_bytes secret, public;
  char endpoint[ENDPOINT_MAX] = "tcp://127.0.0.1:9", nobody[100], text[SCRATCH_MAX + 16];
  err e = {0};
  uv_loop_init(&loop);
  node_open(&n, &loop, 2, false);
  node_open(&without, &loop, 2, false);
  assert_int_equal(key_generate(&secret, &public, &e), ERR_OK);
  endpoint_add_key(endpoint, &public);
  cannot_call(&n, endpoint, ERR_DENIED, "the key of the program at tcp://127.0.0.1:9 is not in ");
  snprintf(text, sizeof text, "no keys: %s", none.text);
  cannot_call(&without, "tcp://127.0.0.1:9", ERR_IO, text);
  temp_endpoint(nobody, sizeof nobody, "nobody");
  assert_true(transport_connect(without.wire, nobody, &e) != 0); /* needs none */
  assert_int_equal(transport_check_call(without.wire, nobody, &e), ERR_OK);
  transport_close(n.wire);
  transport_close(without.wire);
  finish_loop(&loop);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nothing_comes_in_while_the_gate_is_late_dead_or_missing),
      cmocka_unit_test(test_not_a_byte_is_decoded_of_who_has_no_right_key),
      cmocka_unit_test(test_a_key_that_is_added_comes_in),
      cmocka_unit_test(test_a_routing_id_does_not_lead_to_the_peer_of_another_key),
      cmocka_unit_test(test_a_program_calls_only_whom_it_trusts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
