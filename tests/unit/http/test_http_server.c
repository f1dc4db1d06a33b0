/* libs: http */
/* Requests and responses over real sockets: whole, in pieces, late, broken off. */
#include "orchestrator/service/http/http_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define WAIT_TURNS 120000 /* of a millisecond: patience, not a time */
#define STATUS_OK  200
#define BIG        (8u << 20) /* more bytes than a socket holds */

typedef enum { AT_ONCE, LATER, IN_PIECES } manner;

typedef struct site {
  uv_loop_t loop;
  http_server *server;
  manner how;
  int requests, gone;
  http_exchange *waiting;
  char method[16], path[64], query[16], header[64];
  char *body;
  const char *reply; /* [BIG]; NULL: "fine" */
  size_t body_size;
  unsigned problem;
} site;

static void copy(char *out, size_t size, const char *text) {
  snprintf(out, size, "%s", text ? text : "(none)");
}

static void on_request(void *owner, http_exchange *x) {
  site *s = owner;
  size_t size;
  const char *body = http_body(x, &size);
  s->requests++;
  s->problem = http_problem(x);
  copy(s->method, sizeof s->method, http_method(x));
  copy(s->path, sizeof s->path, http_path(x));
  copy(s->query, sizeof s->query, http_query(x, "q"));
  copy(s->header, sizeof s->header, http_header(x, "x-test"));
  free(s->body);
  s->body = malloc(size + 1);
  memcpy(s->body, body, size + 1);
  s->body_size = size;
  if (s->how == AT_ONCE) {
    http_add_header(x, "X-Answer", "yes");
    http_reply(x, STATUS_OK, "text/plain", s->reply ? s->reply : "fine", s->reply ? BIG : 4);
    return;
  }
  http_set_user(x, s);
  s->waiting = x;
  if (s->how == IN_PIECES) assert_int_equal(http_stream_begin(x, STATUS_OK, "text/plain"), ERR_OK);
}

static void on_gone(void *owner, http_exchange *x) {
  site *s = owner;
  assert_ptr_equal(x, s->waiting);
  assert_ptr_equal(http_user(x), s);
  s->waiting = NULL;
  s->gone++;
}

static void site_open(site *s, manner how) {
  const http_server_options o = {
      .host = "127.0.0.1", .on_request = on_request, .on_gone = on_gone, .owner = s};
  err e = {0};
  *s = (site){.how = how};
  uv_loop_init(&s->loop);
  assert_int_equal(http_server_open(&s->server, &s->loop, &o, &e), ERR_OK);
  assert_true(http_server_port(s->server) > 0);
}

static void site_close(site *s) {
  http_server_close(s->server);
  uv_run(&s->loop, UV_RUN_DEFAULT);
  assert_int_equal(uv_loop_close(&s->loop), 0);
  free(s->body);
}

static int client(const site *s) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(http_server_port(s->server))};
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
  fcntl(fd, F_SETFL, O_NONBLOCK);
  return fd;
}

static void say(int fd, const char *text) {
  assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static void turn(site *s) {
  uv_run(&s->loop, UV_RUN_NOWAIT);
  usleep(1000);
}

/* Reads until `text` has come, or the connection has ended; `got` holds all of it. */
static bool hears(site *s, int fd, const char *text, char *got, size_t size) {
  size_t n = strlen(got);
  for (int i = 0; i < WAIT_TURNS; i++) {
    turn(s);
    ssize_t r = read(fd, got + n, size - 1 - n);
    if (r > 0) got[n += (size_t)r] = 0;
    if (strstr(got, text)) return true;
    if (r == 0 || (r < 0 && errno != EAGAIN)) return false;
  }
  return false;
}

/* Reads until the connection has ended; *more: the bytes that came. */
static bool ended_after(site *s, int fd, size_t *more) {
  char rest[1 << 16];
  *more = 0;
  for (int i = 0; i < WAIT_TURNS; i++) {
    turn(s);
    ssize_t r = read(fd, rest, sizeof rest);
    if (r == 0 || (r < 0 && errno != EAGAIN)) return true;
    if (r > 0) *more += (size_t)r;
  }
  return false;
}

static bool ended(site *s, int fd) {
  size_t more;
  return ended_after(s, fd, &more);
}

#define POST "POST /a/b?q=5 HTTP/1.1\r\nHost: x\r\nX-Test: some\r\n"

static void test_a_request_is_seen_whole(void **state) {
  (void)state;
  site s;
  char got[1000] = "";
  site_open(&s, AT_ONCE);
  int fd = client(&s);
  say(fd, POST "Content-Length: 5\r\n\r\nab");
  for (int i = 0; i < 20; i++) turn(&s);
  assert_int_equal(s.requests, 0);
  say(fd, "cde");
  assert_true(hears(&s, fd, "\r\n\r\nfine", got, sizeof got));
  assert_non_null(strstr(got, "HTTP/1.1 200 OK\r\n"));
  assert_non_null(strstr(got, "X-Answer: yes\r\n"));
  assert_non_null(strstr(got, "Content-Type: text/plain\r\n"));
  assert_string_equal(s.method, "POST");
  assert_string_equal(s.path, "/a/b");
  assert_string_equal(s.query, "5");
  assert_string_equal(s.header, "some");
  assert_string_equal(s.body, "abcde");
  got[0] = 0;
  say(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); /* the same connection */
  assert_true(hears(&s, fd, "fine", got, sizeof got));
  assert_int_equal(s.body_size, 0);
  close(fd);
  site_close(&s);
}

static void test_a_body_in_chunks(void **state) {
  (void)state;
  site s;
  char got[1000] = "";
  site_open(&s, AT_ONCE);
  int fd = client(&s);
  say(fd, POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  assert_true(hears(&s, fd, "fine", got, sizeof got));
  assert_string_equal(s.body, "abcde");
  close(fd);
  site_close(&s);
}

static void test_an_answer_may_come_later(void **state) {
  (void)state;
  site s;
  char got[1000] = "";
  site_open(&s, LATER);
  int fd = client(&s);
  say(fd, POST "\r\n");
  for (int i = 0; i < WAIT_TURNS && !s.waiting; i++) turn(&s);
  http_reply(s.waiting, 404, "text/plain", "late", 4);
  assert_true(hears(&s, fd, "late", got, sizeof got));
  assert_non_null(strstr(got, "HTTP/1.1 404"));
  assert_int_equal(s.gone, 0);
  close(fd);
  site_close(&s);
}

static void test_a_stream_goes_out_piece_by_piece(void **state) {
  (void)state;
  site s;
  char got[2000] = "";
  site_open(&s, IN_PIECES);
  int fd = client(&s);
  say(fd, POST "\r\n");
  for (int i = 0; i < WAIT_TURNS && !s.waiting; i++) turn(&s);
  for (int i = 0; i < 5; i++) {
    char piece[24];
    snprintf(piece, sizeof piece, "piece %d;", i);
    assert_int_equal(http_stream_write(s.waiting, piece, strlen(piece)), ERR_OK);
    assert_true(hears(&s, fd, piece, got, sizeof got));
    assert_int_equal(http_stream_unsent(s.waiting), 0);
  }
  http_stream_end(s.waiting);
  assert_true(hears(&s, fd, "\r\n0\r\n\r\n", got, sizeof got));
  assert_int_equal(s.gone, 0);
  close(fd);
  site_close(&s);
}

static void test_who_hangs_up_is_noticed(void **state) {
  (void)state;
  for (manner how = LATER; how <= IN_PIECES; how++) {
    site s;
    site_open(&s, how);
    int fd = client(&s);
    say(fd, POST "\r\n");
    for (int i = 0; i < WAIT_TURNS && !s.waiting; i++) turn(&s);
    for (int i = 0; i < 20; i++) turn(&s);
    assert_int_equal(s.gone, 0);
    close(fd);
    for (int i = 0; i < WAIT_TURNS && !s.gone; i++) turn(&s);
    assert_int_equal(s.gone, 1);
    for (int i = 0; i < WAIT_TURNS && http_server_connections(s.server); i++) turn(&s);
    assert_int_equal(http_server_connections(s.server), 0);
    site_close(&s);
  }
}

/* Its end comes together with the last bytes, or after them. */
static void test_who_hangs_up_within_a_request_is_noticed(void **state) {
  (void)state;
  static const char *const parts[] = {"", "POST /a", POST "Content-Length: 9\r\n\r\n",
                                      POST "Content-Length: 9\r\n\r\nhalf"};
  site s;
  site_open(&s, AT_ONCE);
  for (size_t i = 0; i < 2 * sizeof parts / sizeof *parts; i++) {
    int fd = client(&s);
    for (int k = 0; k < WAIT_TURNS && !http_server_connections(s.server); k++) turn(&s);
    say(fd, parts[i / 2]);
    for (int k = 0; i % 2 && k < 20; k++) turn(&s);
    close(fd);
    for (int k = 0; k < WAIT_TURNS && http_server_connections(s.server); k++) turn(&s);
    assert_int_equal(http_server_connections(s.server), 0);
  }
  assert_int_equal(s.requests, 0);
  site_close(&s);
}

static void test_who_says_no_more_is_answered_if_that_is_at_once(void **state) {
  (void)state;
  site s;
  char got[1000] = "";
  site_open(&s, AT_ONCE);
  char *big = calloc(1, BIG);
  size_t more;
  for (int i = 0; i < 2; i++) {
    s.reply = i ? big : NULL;
    int fd = client(&s);
    say(fd, POST "Content-Length: 4\r\n\r\nbody");
    shutdown(fd, SHUT_WR);
    got[0] = 0;
    assert_true(hears(&s, fd, i ? "X-Answer" : "fine", got, sizeof got));
    assert_true(ended_after(&s, fd, &more));
    assert_true(i == 0 || more + sizeof got > BIG);
    for (int k = 0; k < WAIT_TURNS && http_server_connections(s.server); k++) turn(&s);
    assert_int_equal(http_server_connections(s.server), 0);
    close(fd);
  }
  free(big);
  site_close(&s);
}

static void test_an_abort_breaks_the_connection(void **state) {
  (void)state;
  site s;
  char got[2000] = "";
  site_open(&s, IN_PIECES);
  int fd = client(&s);
  say(fd, POST "\r\n");
  for (int i = 0; i < WAIT_TURNS && !s.waiting; i++) turn(&s);
  http_stream_write(s.waiting, "half", 4);
  assert_true(hears(&s, fd, "half", got, sizeof got));
  http_abort(s.waiting);
  assert_true(ended(&s, fd));
  assert_null(strstr(got, "\r\n0\r\n"));
  assert_int_equal(s.gone, 0); /* the owner knows */
  close(fd);
  site_close(&s);
}

static void test_what_a_slow_reader_has_not_taken_is_counted(void **state) {
  (void)state;
  site s;
  char *block = calloc(1, 1 << 20);
  site_open(&s, IN_PIECES);
  int fd = client(&s);
  say(fd, POST "\r\n");
  for (int i = 0; i < WAIT_TURNS && !s.waiting; i++) turn(&s);
  for (int i = 0; i < 16; i++) {
    http_stream_write(s.waiting, block, 1 << 20);
    turn(&s);
  }
  assert_true(http_stream_unsent(s.waiting) > 1 << 20);
  http_abort(s.waiting);
  assert_true(ended(&s, fd));
  free(block);
  close(fd);
  site_close(&s);
}

static void test_a_body_that_is_too_large_is_a_problem(void **state) {
  (void)state;
  site s;
  char got[1000] = "", *block = malloc(1 << 16);
  memset(block, 'x', 1 << 16);
  site_open(&s, AT_ONCE);
  int fd = client(&s);
  say(fd, POST "Content-Length: 20000000\r\n\r\n");
  for (size_t sent = 0; sent < 20000000;) {
    size_t left = 20000000 - sent;
    ssize_t n = write(fd, block, left < 1 << 16 ? left : 1 << 16);
    if (n > 0) sent += (size_t)n;
    uv_run(&s.loop, UV_RUN_NOWAIT);
  }
  assert_true(hears(&s, fd, "fine", got, sizeof got));
  assert_int_equal(s.problem, 413);
  close(fd);
  fd = client(&s);
  s.problem = 0;
  say(fd, POST "Content-Length: 900000000\r\n\r\n");
  got[0] = 0;
  assert_true(hears(&s, fd, "fine", got, sizeof got)); /* before it comes */
  assert_int_equal(s.problem, 413);
  free(block);
  close(fd);
  site_close(&s);
}

static void test_closing_breaks_what_waits(void **state) {
  (void)state;
  site s;
  site_open(&s, LATER);
  int fd = client(&s);
  say(fd, POST "\r\n");
  for (int i = 0; i < WAIT_TURNS && !s.waiting; i++) turn(&s);
  site_close(&s);
  assert_int_equal(s.gone, 1);
  close(fd);
}

static void test_what_is_no_http_harms_nobody(void **state) {
  (void)state;
  static const char *const bad[] = {"garbage\r\n\r\n", "GET\r\n\r\n", "\x16\x03\x01\x02",
                                    "GET / HTTP/9.9\r\n\r\n",
                                    "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n"};
  site s;
  site_open(&s, AT_ONCE);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    int fd = client(&s);
    say(fd, bad[i]);
    for (int k = 0; k < 20; k++) turn(&s);
    close(fd);
  }
  char got[1000] = "";
  int fd = client(&s);
  say(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  assert_true(hears(&s, fd, "fine", got, sizeof got));
  close(fd);
  site_close(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_request_is_seen_whole),
      cmocka_unit_test(test_a_body_in_chunks),
      cmocka_unit_test(test_an_answer_may_come_later),
      cmocka_unit_test(test_a_stream_goes_out_piece_by_piece),
      cmocka_unit_test(test_who_hangs_up_is_noticed),
      cmocka_unit_test(test_who_hangs_up_within_a_request_is_noticed),
      cmocka_unit_test(test_who_says_no_more_is_answered_if_that_is_at_once),
      cmocka_unit_test(test_an_abort_breaks_the_connection),
      cmocka_unit_test(test_what_a_slow_reader_has_not_taken_is_counted),
      cmocka_unit_test(test_a_body_that_is_too_large_is_a_problem),
      cmocka_unit_test(test_closing_breaks_what_waits),
      cmocka_unit_test(test_what_is_no_http_harms_nobody),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
