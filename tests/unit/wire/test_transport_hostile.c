/* libs: wire base */
/* Peers that send what they should not, or too much of it, or want to be somebody else. */
#include "tests/support/transport_nodes.h"
#include "wire/accept_gate.h"
#include "wire/codec.h"
#include "wire/connection_limit.h"
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <zmq.h> /* a hostile peer is built by hand */

/* --- hostile peers --- */

typedef struct hostile {
  void *context, *socket;
} hostile;

static hostile hostile_open(const char *endpoint) {
  hostile h = {zmq_ctx_new(), NULL};
  int linger = 0, timeout = WAIT_MS;
  h.socket = zmq_socket(h.context, ZMQ_DEALER);
  zmq_setsockopt(h.socket, ZMQ_LINGER, &linger, sizeof linger);
  zmq_setsockopt(h.socket, ZMQ_RCVTIMEO, &timeout, sizeof timeout);
  assert_int_equal(zmq_connect(h.socket, endpoint), 0);
  return h;
}

static void hostile_close(hostile h) {
  zmq_close(h.socket);
  zmq_ctx_term(h.context);
}

/* Is what comes next an ERROR whose text holds `text`? Keeps the loop running meanwhile. */
static bool hostile_hears(hostile h, uv_loop_t *loop, const char *text) {
  char frame[4096];
  int size;
  WAIT_UNTIL(
      (uv_run(loop, UV_RUN_NOWAIT), (size = zmq_recv(h.socket, frame, sizeof frame, ZMQ_DONTWAIT)) > 0));
  return size > 2 && frame[1] == MSG_ERROR && memmem(frame, (size_t)size, text, strlen(text));
}

/* Encodes a message of ours as a hostile program would send it. */
static void hostile_send(hostile h, const msg *m) {
  codec_buffer out = {0};
  err e;
  assert_int_equal(codec_encode(m, &out, &e), ERR_OK);
  assert_int_equal(zmq_send(h.socket, out.data, out.size, 0), out.size);
  codec_buffer_fini(&out);
}

/* The server's owner greets whoever spoke last. */
static void welcome_last(node *server) {
  msg welcome = {.type = MSG_WELCOME, .to = {{7}}};
  welcome.u.hello = hello_of().u.hello;
  welcome.u.hello.version_min = welcome.u.hello.version_max;
  assert_true(transport_send(server->wire, server->last_peer, &welcome));
}

static void test_a_bad_frame_is_answered_and_nobody_else_notices(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {.echo = true}, client = {0};
  char endpoint[100];
  temp_endpoint(endpoint, sizeof endpoint, "bad");
  peer_id to = pair_open(&loop, &server, &client, endpoint);
  hostile h = hostile_open(endpoint);
  assert_int_equal(zmq_send(h.socket, "garbage", 7, 0), 7);
  assert_true(hostile_hears(h, &loop, "R-FRAME-ARRAY"));
  assert_int_equal(zmq_send(h.socket, "", 0, 0), 0);
  assert_true(hostile_hears(h, &loop, "R-FRAME-CUT"));
  zmq_send(h.socket, "one", 3, ZMQ_SNDMORE);
  zmq_send(h.socket, "two", 3, ZMQ_SNDMORE);
  zmq_send(h.socket, "three", 5, 0);
  assert_true(hostile_hears(h, &loop, "R-PARTS"));
  assert_int_equal(transport_count(server.wire).bad_frames, 3);
  /* A broken ERROR is not answered by an ERROR. [3, bin16 0, 0, 0, "x"] lacks a field. */
  uint8_t broken[24] = {0x95, MSG_ERROR, 0xc4, 16};
  broken[22] = 0xa1;
  broken[23] = 'x';
  assert_int_equal(zmq_send(h.socket, broken, sizeof broken, 0), sizeof broken);
  assert_int_equal(zmq_send(h.socket, "again", 5, 0), 5);
  assert_true(hostile_hears(h, &loop, "R-FRAME-ARRAY"));
  assert_int_equal(transport_count(server.wire).bad_frames, 5);
  assert_int_equal(server.heard, 0); /* none reached the owner */
  msg m = ping_of(1);                /* and the other peer has not noticed */
  assert_true(transport_send(client.wire, to, &m));
  assert_true(run_until(&loop, &client.heard, 1, WAIT_MS));
  hostile_close(h);
  pair_close(&loop, &server, &client);
}

/* A frame above the limit ends that connection and no other. */
static void test_a_huge_frame_ends_only_its_own_connection(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {.echo = true}, client = {0};
  char endpoint[100];
  temp_endpoint(endpoint, sizeof endpoint, "huge");
  peer_id to = pair_open(&loop, &server, &client, endpoint);
  hostile h = hostile_open(endpoint);
  static const size_t sizes[] = {WIRE_INBOUND_FRAME_MAX + 1, WIRE_FRAME_MAX + 1};
  char *huge = calloc(1, WIRE_FRAME_MAX + 1);
  for (uint64_t i = 0; i < 2; i++) {
    zmq_send(h.socket, huge, sizes[i], 0);
    msg m = ping_of(1);
    assert_true(transport_send(client.wire, to, &m));
    assert_true(run_until(&loop, &client.heard, i + 1, WAIT_MS));
  }
  assert_int_equal(transport_count(server.wire).bad_frames, 0); /* it never came this far */
  free(huge);
  hostile_close(h);
  pair_close(&loop, &server, &client);
}

/* Sends frames until nothing more is taken for a while: how many? The loop of the program that is flooded
 * stands. The first frame is taken before there is a connection. */
static uint64_t flood(const char *endpoint, size_t size, int ms) {
  hostile h = hostile_open(endpoint);
  int queue = 1;
  uint64_t sent = 0;
  uint8_t *frame = calloc(1, size);
  zmq_close(h.socket);
  h.socket = zmq_socket(h.context, ZMQ_DEALER);
  zmq_setsockopt(h.socket, ZMQ_SNDHWM, &queue, sizeof queue);
  zmq_setsockopt(h.socket, ZMQ_LINGER, &(int){0}, sizeof(int));
  assert_int_equal(zmq_connect(h.socket, endpoint), 0);
  for (int idle = 0; idle < ms && sent < 5000;) {
    bool taken = zmq_send(h.socket, frame, size, ZMQ_DONTWAIT) >= 0;
    sent += taken;
    idle = taken ? 0 : idle + (sent > 1);
    if (!taken) usleep(1000);
  }
  free(frame);
  hostile_close(h);
  return sent;
}

/* What one peer makes us hold is bounded in bytes, whatever it sends. */
static void test_a_flood_is_bounded_in_bytes(void **state) {
  (void)state;
  static const size_t sizes[] = {WIRE_INBOUND_FRAME_MAX, WIRE_GREETING_MAX, 100};
  for (int i = 0; i < 3; i++) {
    uv_loop_t loop;
    node server = {.echo = true}, client = {0};
    char endpoint[100];
    temp_endpoint(endpoint, sizeof endpoint, "flood");
    peer_id to = pair_open(&loop, &server, &client, endpoint);
    uint64_t taken = flood(endpoint, sizes[i], 300);
    /* A queue here, one there and what the kernel takes: 16 frames of the longest, and then bytes. */
    if (taken * sizes[i] > 2u << 20) fail_msg("%d frames of %d bytes", (int)taken, (int)sizes[i]);
    msg m = ping_of(1);
    assert_true(transport_send(client.wire, to, &m));
    assert_true(run_until(&loop, &client.heard, 1, WAIT_MS));
    WAIT_UNTIL((uv_run(&loop, UV_RUN_NOWAIT), transport_count(server.wire).bad_frames > 0));
    pair_close(&loop, &server, &client);
  }
}

/* Before HELLO nobody needs a large frame: it is refused unread. Who was welcomed may send one. */
static void test_a_large_frame_before_the_greeting_is_refused(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {0}, client = {0};
  char endpoint[100];
  static char frame[WIRE_INBOUND_FRAME_MAX];
  temp_endpoint(endpoint, sizeof endpoint, "greeting");
  pair_open(&loop, &server, &client, endpoint);
  hostile h = hostile_open(endpoint);
  zmq_send(h.socket, frame, WIRE_GREETING_MAX + 1, 0);
  assert_true(hostile_hears(h, &loop, "R-GREETING-SIZE"));
  zmq_send(h.socket, frame, WIRE_GREETING_MAX, 0);
  assert_true(hostile_hears(h, &loop, "R-FRAME-ARRAY"));
  msg hello = hello_of();
  hostile_send(h, &hello);
  server.heard = 0;
  assert_true(run_until(&loop, &server.heard, 1, WAIT_MS));
  welcome_last(&server);
  char answer[512];
  assert_true(zmq_recv(h.socket, answer, sizeof answer, 0) > 0);
  zmq_send(h.socket, frame, sizeof frame, 0);
  assert_true(hostile_hears(h, &loop, "R-FRAME-ARRAY"));
  hostile_close(h);
  pair_close(&loop, &server, &client);
}

/* --- who is who --- */

static void temp_path(char *out, size_t size, const char *endpoint) {
  snprintf(out, size, "%s", endpoint + strlen("ipc://"));
}

/* Whatever the umask is, an ipc address is its owner's alone. */
static void test_an_ipc_address_is_its_owners_alone(void **state) {
  (void)state;
  static const mode_t masks[] = {0, 022, 077};
  for (int i = 0; i < 3; i++) {
    uv_loop_t loop;
    node n = {0};
    char endpoint[100], path[100], bound[128];
    struct stat file;
    err e;
    uv_loop_init(&loop);
    node_open(&n, &loop, 1, false);
    temp_endpoint(endpoint, sizeof endpoint, "private");
    temp_path(path, sizeof path, endpoint);
    mode_t before = umask(masks[i]);
    assert_int_equal(transport_bind(n.wire, endpoint, bound, sizeof bound, &e), ERR_OK);
    assert_int_equal(umask(before), masks[i]); /* as it was */
    assert_int_equal(stat(path, &file), 0);
    assert_int_equal(file.st_mode & 0777, 0600);
    transport_close(n.wire);
    finish_loop(&loop);
  }
}

/* Whoever knows a routing id can take the connection over: nothing that is told goes into it. */
static void test_routing_ids_are_secret(void **state) {
  (void)state;
  uint8_t ids[4][256];
  char frame[512];
  wire_id self = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};
  for (int program = 0, i = 0; program < 2; program++) { /* with two connections each */
    uv_loop_t loop;
    node n = {0};
    err e;
    char endpoint[100];
    uv_loop_init(&loop);
    temp_endpoint(endpoint, sizeof endpoint, "secret");
    void *context = zmq_ctx_new(), *router = zmq_socket(context, ZMQ_ROUTER);
    assert_int_equal(zmq_bind(router, endpoint), 0);
    transport_options o = {.on_message = node_on_message, .context = &n, .self = self};
    assert_int_equal(transport_open(&n.wire, &loop, &o, &e), ERR_OK);
    for (int k = 0; k < 2; k++, i++) {
      msg hello = hello_of();
      hello.u.hello.incarnation = self;
      peer_id to = transport_connect(n.wire, endpoint, &e);
      assert_true(transport_send(n.wire, to, &hello));
      int size;
      WAIT_UNTIL((uv_run(&loop, UV_RUN_NOWAIT),
                  (size = zmq_recv(router, ids[i], sizeof ids[i], ZMQ_DONTWAIT)) >= 0));
      assert_true(size >= 17);
      assert_int_equal(ids[i][0], 1);
      assert_true(zmq_recv(router, frame, sizeof frame, 0) > 0);
      assert_null(memmem(ids[i], (size_t)size, self.bytes, sizeof self.bytes));
      for (int other = 0; other < i; other++) /* not even a part in common */
        for (int at = 1; at + 4 <= size; at++) assert_true(memcmp(ids[i] + at, ids[other] + at, 4) != 0);
    }
    transport_close(n.wire);
    finish_loop(&loop);
    zmq_close(router);
    zmq_ctx_term(context);
  }
}

/* A connection that has shaken hands, as ZMTP 3.0 says, and sends nothing. */
static int connect_stranger(const char *endpoint) {
  static const uint8_t greeting[64] = {[0] = 0xff, [9] = 0x7f, 3, 0, 'N', 'U', 'L', 'L'};
  static const char ready[] = "\4\34\5READY\13Socket-Type\0\0\0\6DEALER";
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  temp_path(address.sun_path, sizeof address.sun_path, endpoint);
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
  assert_int_equal(write(fd, greeting, sizeof greeting), sizeof greeting);
  assert_int_equal(write(fd, ready, sizeof ready - 1), sizeof ready - 1);
  return fd;
}

static int count_closed(const int *fds, int count) {
  int closed = 0;
  for (int i = 0; i < count; i++) {
    struct pollfd p = {fds[i], POLLRDHUP, 0};
    closed += poll(&p, 1, 0) > 0;
  }
  return closed;
}

/* Connections that only wait make way; whoever was greeted does not notice, also after it has connected anew.
 */
static void test_connections_that_only_wait_are_closed(void **state) {
  (void)state;
  enum { EXTRA = 20, MANY = CONNECTION_STRANGERS_MAX + EXTRA };
  uv_loop_t loop;
  node server = {.echo = true}, client = {0};
  char endpoint[100];
  temp_endpoint(endpoint, sizeof endpoint, "many");
  peer_id to = pair_open(&loop, &server, &client, endpoint);
  welcome_last(&server);
  assert_true(run_until(&loop, &client.heard, 1, WAIT_MS));
  int fds[MANY];
  for (int i = 0; i < MANY; i++) {
    fds[i] = connect_stranger(endpoint);
    struct pollfd p = {fds[i], POLLIN, 0}; /* the library accepts on a thread of its own, and then greets */
    WAIT_UNTIL(poll(&p, 1, 0) > 0);
    uv_run(&loop, UV_RUN_NOWAIT);
  }
  WAIT_UNTIL((uv_run(&loop, UV_RUN_NOWAIT), count_closed(fds, MANY) >= EXTRA));
  msg m = ping_of(1);
  assert_true(transport_send(client.wire, to, &m));
  assert_true(run_until(&loop, &client.heard, 2, WAIT_MS));
  assert_int_equal(count_closed(fds, MANY), EXTRA);
  for (int i = 0; i < MANY; i++) close(fds[i]);
  pair_close(&loop, &server, &client);
}

/* While the loop stands nobody looks at who comes, and few come in. When it looks again, others do. */
static void test_few_connections_come_in_while_the_loop_stands(void **state) {
  (void)state;
  enum { MANY = 64 };
  uv_loop_t loop;
  node server = {.echo = true, .clock = standing_clock}, client = {0};
  char endpoint[100], byte;
  temp_endpoint(endpoint, sizeof endpoint, "stands");
  peer_id to = pair_open(&loop, &server, &client, endpoint);
  int fds[MANY], let_in = 0;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  temp_path(address.sun_path, sizeof address.sun_path, endpoint);
  for (int i = 0; i < MANY; i++) {
    fds[i] = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fds[i], (struct sockaddr *)&address, sizeof address), 0);
  }
  for (int i = 0; i < MANY; i++) let_in += read(fds[i], &byte, 1) == 1; /* ZeroMQ greets who came in */
  assert_int_equal(let_in, ACCEPT_GATE_MAX);
  msg m = ping_of(1);
  assert_true(transport_send(client.wire, to, &m));
  assert_true(run_until(&loop, &client.heard, 1, WAIT_MS));
  hostile h = hostile_open(endpoint);
  assert_int_equal(zmq_send(h.socket, "garbage", 7, 0), 7);
  assert_true(hostile_hears(h, &loop, "R-FRAME-ARRAY"));
  hostile_close(h);
  for (int i = 0; i < MANY; i++) close(fds[i]);
  pair_close(&loop, &server, &client);
}

/* ZeroMQ would end the program. */
static void test_a_process_without_descriptors_goes_on(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {.echo = true}, client = {0};
  char endpoint[100];
  temp_endpoint(endpoint, sizeof endpoint, "exhausted");
  peer_id to = pair_open(&loop, &server, &client, endpoint);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  temp_path(address.sun_path, sizeof address.sun_path, endpoint);
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  struct rlimit before, none = {.rlim_cur = 8}; /* all below are open, and poll(2) takes no more than that */
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  assert_true(fd >= 8);
  none.rlim_max = before.rlim_max;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
  usleep(50000);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  char byte;
  assert_int_equal(read(fd, &byte, 1), 1); /* it comes in now */
  msg m = ping_of(1);
  assert_true(transport_send(client.wire, to, &m));
  assert_true(run_until(&loop, &client.heard, 1, WAIT_MS));
  close(fd);
  pair_close(&loop, &server, &client);
}

/* Sends what is no frame of ours until the connection breaks: was it closed? */
static bool hostile_is_cut(hostile h, uv_loop_t *loop, void *monitor) {
  uint64_t begun_us = clock_us();
  for (int i = 0; clock_us() - begun_us < PATIENCE_US; i++) {
    zmq_send(h.socket, "garbage", 7, ZMQ_DONTWAIT);
    uv_run(loop, UV_RUN_NOWAIT);
    if (i % 64 == 0) usleep(1000);
    zmq_msg_t event;
    zmq_msg_init(&event);
    bool cut = zmq_msg_recv(&event, monitor, ZMQ_DONTWAIT) >= 0;
    zmq_msg_close(&event);
    if (cut) return true;
  }
  return false;
}

/* A peer of which nothing can be used is closed, the more so as it reads no reply; others do not notice. */
static void test_who_sends_only_what_cannot_be_used_is_closed(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {.echo = true, .clock = standing_clock}, client = {0};
  char endpoint[100];
  temp_endpoint(endpoint, sizeof endpoint, "useless");
  peer_id to = pair_open(&loop, &server, &client, endpoint);
  hostile h = hostile_open(endpoint);
  assert_int_equal(zmq_socket_monitor(h.socket, "inproc://cut", ZMQ_EVENT_DISCONNECTED), 0);
  void *monitor = zmq_socket(h.context, ZMQ_PAIR);
  zmq_setsockopt(monitor, ZMQ_LINGER, &(int){0}, sizeof(int));
  assert_int_equal(zmq_connect(monitor, "inproc://cut"), 0);
  uint64_t before = transport_count(server.wire).sent;
  assert_true(hostile_is_cut(h, &loop, monitor));
  uint64_t replies = transport_count(server.wire).sent - before;
  assert_int_equal(replies, 256);
  msg m = ping_of(1);
  assert_true(transport_send(client.wire, to, &m));
  assert_true(run_until(&loop, &client.heard, 1, WAIT_MS));
  zmq_close(monitor);
  hostile_close(h);
  pair_close(&loop, &server, &client);
}

/* END is how sessions that nobody knows are answered: who asks for it for ever is cut off, too. */
static void test_who_is_told_the_end_for_ever_is_closed(void **state) {
  (void)state;
  uv_loop_t loop;
  node server = {.echo = true, .clock = standing_clock}, client = {0};
  char endpoint[100];
  temp_endpoint(endpoint, sizeof endpoint, "ends");
  pair_open(&loop, &server, &client, endpoint);
  msg end = {.type = MSG_END, .to = {{9}}, .session = 1, .epoch = 1};
  int sent = 0;
  for (int i = 0; i < 5000; i++) sent += transport_send(server.wire, server.last_peer, &end);
  assert_in_range(sent, 1024, 1024 + 256); /* as an END, and then as any reply, if there is room */
  assert_true(run_until(&loop, &server.ended, 1, WAIT_MS));
  pair_close(&loop, &server, &client);
}

/* A bad frame from the side that was connected to is refused by a DEALER as well. */
static void test_a_bad_frame_of_a_server_is_refused(void **state) {
  (void)state;
  uv_loop_t loop;
  node client = {0};
  err e = {0};
  char endpoint[100], id[256], frame[4096];
  uv_loop_init(&loop);
  node_open(&client, &loop, 2, false);
  temp_endpoint(endpoint, sizeof endpoint, "server");
  void *context = zmq_ctx_new(), *router = zmq_socket(context, ZMQ_ROUTER);
  assert_int_equal(zmq_bind(router, endpoint), 0);
  msg hello = hello_of();
  peer_id to = transport_connect(client.wire, endpoint, &e);
  assert_true(transport_send(client.wire, to, &hello));
  int id_size;
  WAIT_UNTIL((uv_run(&loop, UV_RUN_NOWAIT), (id_size = zmq_recv(router, id, sizeof id, ZMQ_DONTWAIT)) >= 0));
  assert_int_equal(id_size, 25); /* 1, and what was drawn */
  assert_true(zmq_recv(router, frame, sizeof frame, 0) > 0);
  zmq_send(router, id, (size_t)id_size, ZMQ_SNDMORE);
  zmq_send(router, "x", 1, 0);
  WAIT_UNTIL((uv_run(&loop, UV_RUN_NOWAIT), zmq_recv(router, id, sizeof id, ZMQ_DONTWAIT) > 0));
  int size = zmq_recv(router, frame, sizeof frame, 0);
  assert_true(size > 0 && memmem(frame, (size_t)size, "R-FRAME-ARRAY", 13));
  assert_int_equal(transport_count(client.wire).bad_frames, 1);
  zmq_close(router);
  zmq_ctx_term(context);
  transport_close(client.wire);
  finish_loop(&loop);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_bad_frame_is_answered_and_nobody_else_notices),
      cmocka_unit_test(test_a_huge_frame_ends_only_its_own_connection),
      cmocka_unit_test(test_a_flood_is_bounded_in_bytes),
      cmocka_unit_test(test_a_large_frame_before_the_greeting_is_refused),
      cmocka_unit_test(test_an_ipc_address_is_its_owners_alone),
      cmocka_unit_test(test_routing_ids_are_secret),
      cmocka_unit_test(test_connections_that_only_wait_are_closed),
      cmocka_unit_test(test_few_connections_come_in_while_the_loop_stands),
      cmocka_unit_test(test_a_process_without_descriptors_goes_on),
      cmocka_unit_test(test_who_sends_only_what_cannot_be_used_is_closed),
      cmocka_unit_test(test_who_is_told_the_end_for_ever_is_closed),
      cmocka_unit_test(test_a_bad_frame_of_a_server_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
