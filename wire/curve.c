#include "wire/curve.h"

#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define DOMAIN            "tandem"
#define ZAP_ENDPOINT      "inproc://zeromq.zap.01"
#define ZAP_VERSION       "1.0"
#define ZAP_PART_MAX      256
#define GATE_LOG_BURST    16      /* lines about refused keys, */
#define GATE_LOG_EVERY_US 1000000 /* and then one in so long */
/* "Try again later": the other side goes on calling, so that it comes in when its line is added. After "400"
 * its socket would never call again. */
#define ZAP_ACCEPTED "200"
#define ZAP_REFUSED  "300"

#ifndef ZMQ_ZAP_ENFORCE_DOMAIN /* in every zmq.h from 4.3.0 on, but behind the macro for drafts of its API   \
                                */
#define ZMQ_ZAP_ENFORCE_DOMAIN 93
#endif

/* --- sockets --- */

static bool set_key(void *socket, int option, const key_bytes *k) {
  return zmq_setsockopt(socket, option, k->bytes, KEY_BYTES) == 0;
}

bool curve_protect_listener(void *socket, const key_bytes *secret) {
  const int yes = 1;
  return set_key(socket, ZMQ_CURVE_SECRETKEY, secret) &&
         zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &yes, sizeof yes) == 0 &&
         zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, DOMAIN, strlen(DOMAIN)) == 0 &&
         zmq_setsockopt(socket, ZMQ_ZAP_ENFORCE_DOMAIN, &yes, sizeof yes) == 0;
}

bool curve_protect_call(void *socket, const keys *own, const key_bytes *server) {
  return set_key(socket, ZMQ_CURVE_SERVERKEY, server) &&
         set_key(socket, ZMQ_CURVE_PUBLICKEY, keys_public(own)) &&
         set_key(socket, ZMQ_CURVE_SECRETKEY, keys_secret(own));
}

/* --- the gate --- */

struct curve_gate {
  void *socket; /* NULL: closed */
  uv_poll_t poll;
  curve_gate_options options;
  log_limit refusals;
};

/* Parts of a request, in their order. The routing id is the listener's own, not the peer's. */
enum { PART_VERSION, PART_REQUEST, PART_DOMAIN, PART_ADDRESS, PART_ROUTING, PART_MECHANISM, PART_KEY, PARTS };

typedef struct part {
  uint8_t data[ZAP_PART_MAX];
  size_t size;
} part;

typedef struct request {
  part parts[PARTS];
  int32_t count; /* of parts that came; more than PARTS are counted and left out */
} request;

static bool part_is(const part *p, const char *text) {
  return p->size == strlen(text) && memcmp(p->data, text, p->size) == 0;
}

/* False: none waits. */
static bool receive(void *socket, request *r) {
  r->count = 0;
  for (;;) {
    uint8_t rest[ZAP_PART_MAX];
    part *p = r->count < PARTS ? &r->parts[r->count] : NULL;
    int size;
    do size = zmq_recv(socket, p ? p->data : rest, ZAP_PART_MAX, ZMQ_DONTWAIT);
    while (size < 0 && zmq_errno() == EINTR);
    if (size < 0) return false;
    if (p) p->size = size < ZAP_PART_MAX ? (size_t)size : ZAP_PART_MAX;
    r->count++;
    int more = 0;
    size_t more_size = sizeof more;
    if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &more_size) != 0 || !more) return true;
  }
}

static bool is_whole(const request *r) {
  return r->count == PARTS && part_is(&r->parts[PART_VERSION], ZAP_VERSION) &&
         part_is(&r->parts[PART_DOMAIN], DOMAIN) && part_is(&r->parts[PART_MECHANISM], "CURVE") &&
         r->parts[PART_KEY].size == KEY_BYTES;
}

static void tell_refusal(curve_gate *g, const request *r, const key_bytes *k, unsigned roles, const err *e) {
  if (!log_limit_takes(&g->refusals, clock_us(), GATE_LOG_BURST, GATE_LOG_EVERY_US)) return;
  const part *address = &r->parts[PART_ADDRESS];
  char why[ERR_TEXT_MAX + KEY_HEX + 200];
  if (e->code)
    snprintf(why, sizeof why, "%s", e->text);
  else if (roles)
    snprintf(why, sizeof why, "its key is that of another role in %s", keys_allowed_path(g->options.own));
  else
    snprintf(why, sizeof why, "its key is not in %s: if you know who it is, add its line, in which %s stands",
             keys_allowed_path(g->options.own), key_hex_of(k).text);
  log_line(g->options.log, LOG_WARNING, "a program at %.*s was not let in: %s", (int)address->size,
           address->data, why);
}

/* The User-Id of whoever may come in; "" for who may not. */
static void judge(curve_gate *g, const request *r, char user[CURVE_USER_MAX]) {
  key_bytes k;
  err e = {0};
  user[0] = 0;
  if (!is_whole(r)) return;
  memcpy(k.bytes, r->parts[PART_KEY].data, KEY_BYTES);
  unsigned roles = keys_roles(g->options.own, &k, &e);
  if (roles & g->options.roles)
    snprintf(user, CURVE_USER_MAX, "%c%s", (char)('0' + roles), key_hex_of(&k).text);
  else
    tell_refusal(g, r, &k, roles, &e);
}

static void answer(curve_gate *g, const request *r) {
  char user[CURVE_USER_MAX];
  judge(g, r, user);
  const part *from = &r->parts[PART_ADDRESS];
  if (!user[0] && r->count > PART_ADDRESS && g->options.on_denied)
    g->options.on_denied(g->options.owner, (const char *)from->data, from->size);
  const char *status = user[0] ? ZAP_ACCEPTED : ZAP_REFUSED, *text = user[0] ? "" : "not allowed";
  const part *id = &r->parts[PART_REQUEST];
  zmq_send(g->socket, ZAP_VERSION, strlen(ZAP_VERSION), ZMQ_SNDMORE | ZMQ_DONTWAIT);
  zmq_send(g->socket, id->data, r->count > PART_REQUEST ? id->size : 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
  zmq_send(g->socket, status, strlen(status), ZMQ_SNDMORE | ZMQ_DONTWAIT);
  zmq_send(g->socket, text, strlen(text), ZMQ_SNDMORE | ZMQ_DONTWAIT);
  zmq_send(g->socket, user, strlen(user), ZMQ_SNDMORE | ZMQ_DONTWAIT);
  zmq_send(g->socket, "", 0, ZMQ_DONTWAIT);
}

/* Until nothing is left: only then is the next request signalled. */
static void on_request(uv_poll_t *poll, int status, int events) {
  (void)events;
  curve_gate *g = poll->data;
  request r;
  while (status == 0 && g->socket && receive(g->socket, &r)) answer(g, &r);
}

static void on_gate_closed(uv_handle_t *h) {
  free(h->data);
}

static bool watch(curve_gate *g, uv_loop_t *loop) {
  int fd;
  size_t size = sizeof fd;
  if (zmq_getsockopt(g->socket, ZMQ_FD, &fd, &size) != 0 || uv_poll_init(loop, &g->poll, fd) != 0)
    return false;
  g->poll.data = g;
  uv_poll_start(&g->poll, UV_READABLE, on_request);
  on_request(&g->poll, 0, UV_READABLE);
  return true;
}

int curve_gate_open(curve_gate **out, const curve_gate_options *o, err *e) {
  const int no_linger = 0;
  curve_gate *g = calloc(1, sizeof *g);
  *out = NULL;
  if (!g) return err_set(e, ERR_NOMEM, "out of memory for the gate");
  *g = (curve_gate){.socket = zmq_socket(o->context, ZMQ_REP), .options = *o};
  if (g->socket && zmq_setsockopt(g->socket, ZMQ_LINGER, &no_linger, sizeof no_linger) == 0 &&
      zmq_bind(g->socket, ZAP_ENDPOINT) == 0 && watch(g, o->loop)) {
    *out = g;
    return ERR_OK;
  }
  err_set(e, ERR_IO, "cannot watch who comes in: %s", zmq_strerror(zmq_errno()));
  if (g->socket) zmq_close(g->socket);
  free(g);
  return e ? e->code : ERR_IO;
}

void curve_gate_close(curve_gate *g) {
  if (!g) return;
  uv_close((uv_handle_t *)&g->poll, on_gate_closed);
  zmq_close(g->socket);
  g->socket = NULL;
}

unsigned curve_user_roles(const char *user) {
  return user[0] ? (unsigned)(user[0] - '0') : 0;
}
