#include "tests/support/transport_nodes.h"

_Atomic uint64_t standing_us = 1000000;

void make_keys(const char *folder) {
  key_bytes public;
  err e = {0};
  for (int role = WIRE_ROLE_ORCHESTRATOR; role <= WIRE_ROLE_DRAFT; role++)
    if (keys_create(folder, (wire_role)role, "test", &public, &e) != ERR_OK) fail_msg("%s", e.text);
}

const char *test_keys(void) {
  static scratch_path_text folder;
  if (folder.text[0]) return folder.text;
  folder = scratch_path("keys");
  make_keys(folder.text);
  return folder.text;
}

uint64_t standing_clock(void) {
  return standing_us;
}

void node_on_message(void *context, peer_id from, const msg *m) {
  node *n = context;
  if (n->checks_order) assert_int_equal(m->u.ping.sequence, n->heard);
  n->heard++;
  n->last_peer = from;
  n->last = *m;
  if (m->type == MSG_ERROR)
    snprintf(n->text, sizeof n->text, "%.*s", (int)m->u.error.text.size, m->u.error.text.data);
  if (m->type == MSG_PING || m->type == MSG_PONG) n->sum += m->u.ping.sequence;
  if (n->echo && m->type == MSG_PING) {
    n->unsent += !transport_send(n->wire, from, m); /* the peer may have left */
  }
  if (n->leave) transport_disconnect(n->wire, from);
  if (n->close) {
    transport_close(n->wire);
    n->wire = NULL;
  }
}

static void node_on_disconnected(void *context, peer_id from) {
  node *n = context;
  n->ended++;
  n->ended_peer = from;
}

void node_open(node *n, uv_loop_t *loop, uint8_t name, bool allow_plaintext) {
  wire_role role = name == 2 ? WIRE_ROLE_DRAFT : WIRE_ROLE_ORCHESTRATOR;
  transport_options o = {.on_message = node_on_message,
                         .on_disconnected = node_on_disconnected,
                         .context = n,
                         .role = n->role ? n->role : role,
                         .keys = n->keys ? n->keys : test_keys(),
                         .allow_plaintext = allow_plaintext,
                         .busy_poll_us = n->busy_poll_us,
                         .clock = n->clock};
  err e = {0};
  o.self.bytes[0] = name;
  assert_int_equal(transport_open(&n->wire, loop, &o, &e), ERR_OK);
}

msg ping_of(uint64_t sequence) {
  msg m = {.type = MSG_PING, .to = {{9}}};
  m.u.ping.sequence = sequence;
  return m;
}

msg hello_of(void) {
  msg m = {.type = MSG_HELLO};
  m.u.hello = (msg_hello){.version_min = WIRE_VERSION_MIN,
                          .version_max = WIRE_VERSION_MAX,
                          .role = WIRE_ROLE_DRAFT,
                          .incarnation = {{7}}};
  m.u.hello.method = (wire_string){"ngram", 5};
  return m;
}

static void on_timer(uv_timer_t *t) {
  *(bool *)t->data = true;
}

bool run_until(uv_loop_t *loop, const uint64_t *value, uint64_t wanted, uint64_t ms) {
  bool late = false;
  uv_timer_t timer;
  uv_timer_init(loop, &timer);
  timer.data = &late;
  uv_timer_start(&timer, on_timer, ms, 0);
  while (*value < wanted && !late) uv_run(loop, UV_RUN_ONCE);
  uv_close((uv_handle_t *)&timer, NULL);
  uv_run(loop, UV_RUN_NOWAIT);
  return *value >= wanted;
}

void finish_loop(uv_loop_t *loop) {
  uv_run(loop, UV_RUN_NOWAIT);
  assert_int_equal(uv_loop_close(loop), 0); /* no handle is left */
}

peer_id pair_open(uv_loop_t *loop, node *server, node *client, const char *endpoint) {
  char bound[128];
  err e = {0};
  msg hello = hello_of();
  uv_loop_init(loop);
  node_open(server, loop, 1, false);
  node_open(client, loop, 2, false);
  if (transport_bind(server->wire, endpoint, bound, sizeof bound, &e) != ERR_OK) fail_msg("%s", e.text);
  peer_id to = transport_connect(client->wire, bound, &e);
  assert_true(to != 0);
  assert_true(transport_send(client->wire, to, &hello)); /* not connected yet: it is held, not dropped */
  assert_true(run_until(loop, &server->heard, 1, WAIT_MS));
  assert_int_equal(server->last.type, MSG_HELLO);
  server->heard = 0;
  return to;
}

void pair_close(uv_loop_t *loop, node *server, node *client) {
  transport_close(client->wire);
  transport_close(server->wire);
  finish_loop(loop);
}

void temp_endpoint(char *out, size_t size, const char *name) {
  snprintf(out, size, "ipc://%s", scratch_path(name).text);
}
