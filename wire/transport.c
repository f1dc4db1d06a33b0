#include "wire/transport.h"

#include "common/base/log_limit.h"
#include "wire/accept_gate.h"
#include "wire/codec.h"
#include "wire/connection_limit.h"
#include "wire/curve.h"
#include "wire/endpoint.h"
#include "wire/peer_table.h"
#include "wire/location.h"
#include "wire/means.h"
#include "wire/name_lookup.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <zmq.h>

#define TRANSPORT_SEND_QUEUE 1024 /* messages to a peer; more are dropped */
/* Messages that wait here from one connection; the rest waits in the kernel, then at the sender. Times the
 * longest frame, and with one more that is being read, this is what somebody can make us hold: 132 KiB
 * through each connection of a listener (connection_limit.h tells how many), 17 MiB of whom we call. */
#define TRANSPORT_LISTENER_QUEUE 5
#define TRANSPORT_CALL_QUEUE     16
/* ERROR, WELCOME and PONG that one peer of a listener gets at once, and then one in so long: a peer that
 * sends and never reads makes us hold no more of them. */
#define TRANSPORT_REPLY_BURST    256
#define TRANSPORT_REPLY_EVERY_US 5000
/* END is also what a session that nobody knows is answered with. */
#define TRANSPORT_END_BURST    1024
#define TRANSPORT_END_EVERY_US 2000
/* Frames of one peer of a listener at once, and then one in so long; a large one counts as several. Those
 * beyond are taken, but count as useless (connection_limit.h), as those do that are answered with one of
 * these replies. The burst is more than the kernel keeps while this program stands. */
#define TRANSPORT_FRAME_BURST    131072
#define TRANSPORT_FRAME_EVERY_US 20
#define TRANSPORT_FRAME_WEIGHT   1024   /* bytes that count as one frame more */
#define TRANSPORT_RECEIVE_BUFFER 65536  /* of the kernel, for one connection of a listener */
#define TRANSPORT_LOG_BURST      64     /* lines about refused frames, of all peers together, */
#define TRANSPORT_LOG_EVERY_US   500000 /* and then one in so long */
#define TRANSPORT_ROUTING_SIZE   25     /* bytes of a routing id: 1, then random ones */
#define TRANSPORT_LINGER_MS      200
#define TRANSPORT_HANDSHAKE_MS   2000
#define TRANSPORT_RECONNECT_MS   50
#define TRANSPORT_RECONNECT_MAX  2000
#define TRANSPORT_CALL_AGAIN_US  10000000 /* a call that did not come through for so long is made anew, */
#define TRANSPORT_NEXT_US        3000000 /* to the next address of a name: longer than a handshake may take */
#define TRANSPORT_TCP_LOST_MS    3000 /* bytes that nobody takes for so long: the connection is made anew */
#define TRANSPORT_TCP_IDLE_S     10   /* and one that was silent for so long is asked, */
#define TRANSPORT_TCP_ASK_S      3    /* so often, */
#define TRANSPORT_TCP_ASKS       3    /* so many times */
#define TRANSPORT_TURN_MAX       256  /* messages taken from one socket before the loop looks at others, */
#define TRANSPORT_TURN_BYTES     (256 << 10) /* and about how much of them: large ones take long to look at */

_Static_assert(WIRE_NODES_MAX *(9 + 5 + 5) + 512 < WIRE_INBOUND_FRAME_MAX, "a listener takes NODES");
_Static_assert(WIRE_BURST_MAX * 5 + 512 < WIRE_INBOUND_FRAME_MAX, "and TOKENS");
_Static_assert(CURVE_USER_MAX <= PEER_TABLE_USER_MAX, "a peer has room for its User-Id");
_Static_assert(5 * WIRE_STRING_MAX + 512 < WIRE_GREETING_MAX, "and HELLO is a small frame");

/* Tells who connects to the listener. Lives until uv has closed its poll handle. */
typedef struct watch {
  transport *owner;
  void *router, *monitor; /* NULL: closed */
  uv_poll_t poll;
  connection_limit connections;
  accept_gate gate;
} watch;

/* One socket: the ROUTER, or the DEALER of one connection. Lives until uv has closed its poll handle. */
typedef struct channel {
  transport *owner;
  void *socket; /* NULL: closed */
  uv_poll_t poll;
  bool router;
  size_t taken;               /* bytes, in this turn */
  bool look;                  /* may hold messages although its descriptor is silent */
  bool keyed;                 /* asks whoever comes for a key, or was made with that of whom it calls */
  peer_id peer;               /* of a DEALER */
  unsigned roles;             /* of a DEALER: what the key of whom it calls is allowed to be */
  codec_buffer hello;         /* of a DEALER: waits for the connection; size 0: none */
  uint64_t called_us;         /* of a DEALER: when it was called last, or was connected */
  char address[ENDPOINT_MAX]; /* of a DEALER: whom it calls */
  char called[ENDPOINT_MAX];  /* of a DEALER: the same, a name's address in place of the name; "": none yet */
  bool answered;              /* of a DEALER: somebody there has answered since it was called */
  name_lookup *names;         /* of a DEALER that calls a name: the lookup, or its answer; NULL: none */
  int turn;                   /* how many of the name's addresses were called */
  bool logged;                /* that the name has none */
  struct channel *next;
} channel;

struct transport {
  uv_loop_t *loop;
  transport_options options;
  void *context;
  channel *channels;
  watch *watch;                 /* of the ROUTER; NULL: none is bound */
  struct stat file;             /* of the ROUTER's ipc endpoint, ... */
  char file_path[ENDPOINT_MAX]; /* ... which lies here; "": it has none */
  curve_gate *gate;             /* of the ROUTER; NULL: it asks for no keys */
  keys *keys;                   /* NULL: not read yet */
  peer_table peers;
  log_limit refusals;
  size_t frame_size; /* of the frame that is being taken */
  codec_buffer out;
  arena in;
  uv_prepare_t prepare;
  uv_idle_t idle;       /* active: the loop does not sleep, a socket still holds messages */
  uv_async_t looked_up; /* sent when a name's addresses are there */
  int handles;          /* of uv, not yet closed */
  transport_counters counters;
  uint64_t active, active_us; /* messages at the last look for news, and when there were more than before */
};

static uint64_t now_of(const transport *t) {
  return t->options.clock();
}

/* --- sockets --- */

typedef struct socket_option {
  int option, value;
} socket_option;

static bool set_options(void *socket, const socket_option *list, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (zmq_setsockopt(socket, list[i].option, &list[i].value, sizeof list[i].value) != 0) return false;
  return true;
}

/* Everything is set before bind or connect: later it would not hold for what exists already. ZeroMQ's own
 * heartbeats stay off: their timer ends the program (4.3.4: "Assertion failed: !_io_error") when a peer
 * leaves while its queue here is full. Our PINGs tell who lives, and TCP itself ends a connection whose other
 * end is gone. */
static bool set_common_options(void *socket, bool ipv6) {
  const socket_option list[] = {
      {ZMQ_SNDHWM, TRANSPORT_SEND_QUEUE},
      {ZMQ_LINGER, TRANSPORT_LINGER_MS},
      {ZMQ_IMMEDIATE, 1},
      {ZMQ_HANDSHAKE_IVL, TRANSPORT_HANDSHAKE_MS},
      {ZMQ_RECONNECT_IVL, TRANSPORT_RECONNECT_MS},
      {ZMQ_RECONNECT_IVL_MAX, TRANSPORT_RECONNECT_MAX},
      {ZMQ_TCP_MAXRT, TRANSPORT_TCP_LOST_MS},
      {ZMQ_TCP_KEEPALIVE, 1},
      {ZMQ_TCP_KEEPALIVE_IDLE, TRANSPORT_TCP_IDLE_S},
      {ZMQ_TCP_KEEPALIVE_INTVL, TRANSPORT_TCP_ASK_S},
      {ZMQ_TCP_KEEPALIVE_CNT, TRANSPORT_TCP_ASKS},
      {ZMQ_IPV6, ipv6},
  };
  return set_options(socket, list, sizeof list / sizeof list[0]);
}

static bool set_frame_max(void *socket, int64_t bytes) {
  return zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &bytes, sizeof bytes) == 0;
}

static bool set_router_options(void *socket) {
  const socket_option list[] = {{ZMQ_ROUTER_MANDATORY, 1},
                                {ZMQ_ROUTER_HANDOVER, 1},
                                {ZMQ_RCVHWM, TRANSPORT_LISTENER_QUEUE},
                                {ZMQ_RCVBUF, TRANSPORT_RECEIVE_BUFFER}};
  return set_options(socket, list, sizeof list / sizeof list[0]) &&
         set_frame_max(socket, WIRE_INBOUND_FRAME_MAX);
}

/* The same for all reconnects of this channel, another for every channel and every start of a program.
 * Whoever knows it can take the connection over, so it is drawn at random and told to nobody. The first byte
 * must not be zero. */
static bool set_dealer_options(void *socket) {
  const socket_option list[] = {{ZMQ_RCVHWM, TRANSPORT_CALL_QUEUE}};
  uint8_t routing[TRANSPORT_ROUTING_SIZE] = {1};
  size_t size = sizeof routing - 1;
  if (!set_options(socket, list, 1)) return false;
  return getrandom(routing + 1, size, 0) == (ssize_t)size &&
         zmq_setsockopt(socket, ZMQ_ROUTING_ID, routing, sizeof routing) == 0 &&
         set_frame_max(socket, WIRE_FRAME_MAX);
}

static void on_handle_closed(transport *t) {
  if (--t->handles > 0) return;
  peer_table_fini(&t->peers);
  arena_fini(&t->in);
  codec_buffer_fini(&t->out);
  free(t);
}

static void on_poll_closed(uv_handle_t *h) {
  channel *c = h->data;
  transport *t = c->owner;
  for (channel **at = &t->channels; *at; at = &(*at)->next)
    if (*at == c) {
      *at = c->next;
      break;
    }
  codec_buffer_fini(&c->hello);
  free(c);
  on_handle_closed(t);
}

static void channel_close(channel *c) {
  if (!c->socket) return;
  uv_close((uv_handle_t *)&c->poll, on_poll_closed); /* takes the descriptor out of the loop at once */
  name_lookup_drop(c->names);
  c->names = NULL;
  zmq_close(c->socket);
  c->socket = NULL;
}

static void on_readable(uv_poll_t *poll, int status, int events);

static bool channel_watch(channel *c) {
  int fd;
  size_t size = sizeof fd;
  if (zmq_getsockopt(c->socket, ZMQ_FD, &fd, &size) != 0) return false;
  if (uv_poll_init(c->owner->loop, &c->poll, fd) != 0) return false;
  int code = uv_poll_start(&c->poll, UV_READABLE, on_readable);
  assert(code == 0);
  c->poll.data = c;
  c->look = true;
  c->next = c->owner->channels;
  c->owner->channels = c;
  c->owner->handles++;
  return true;
}

/* --- who connects to the listener --- */

/* The owner may close the transport in its callback. */
static void tell_disconnected(transport *t, int fd) {
  for (peer *p; t->watch && (p = peer_table_of_connection(&t->peers, fd));) {
    p->connection = 0;
    if (t->options.on_disconnected) t->options.on_disconnected(t->options.context, p->id);
  }
}

static bool may_log(transport *t) {
  return log_limit_takes(&t->refusals, now_of(t), TRANSPORT_LOG_BURST, TRANSPORT_LOG_EVERY_US);
}

static void watch_begin(watch *w, int listener) {
  connection_limit_init(&w->connections, listener);
  accept_gate_add(&w->gate, listener, w->owner->options.clock);
}

/* Of the connections that ZeroMQ has taken, those that are too many are shut down. */
static void watch_take(watch *w, uint16_t event, int fd) {
  if (event == ZMQ_EVENT_DISCONNECTED) tell_disconnected(w->owner, fd);
  if (event == ZMQ_EVENT_LISTENING) watch_begin(w, fd);
  if (event != ZMQ_EVENT_ACCEPTED || connection_limit_accept(&w->connections, fd, now_of(w->owner))) return;
  if (may_log(w->owner))
    log_line(w->owner->options.log, LOG_WARNING,
             "more than %d connections, or %d of one address that have not been greeted, or the address is "
             "barred: one was closed (%" PRIu64 " so far)",
             CONNECTION_LIMIT_MAX, CONNECTION_STRANGERS_MAX, w->connections.refused);
}

static void watch_open_gate(watch *w) {
  uint64_t closed = accept_gate_look(&w->gate);
  if (closed > 0 && may_log(w->owner))
    log_line(w->owner->options.log, LOG_WARNING,
             "connections came faster than they could be looked at: %" PRIu64 " were closed at once", closed);
}

/* Until nothing is left: only then is the next event signalled. An event is two parts: its number and value,
 * then an address. */
static void watch_drain(watch *w) {
  uint8_t data[256];
  for (int size;
       (size = zmq_recv(w->monitor, data, sizeof data, ZMQ_DONTWAIT)) >= 0 || zmq_errno() == EINTR;) {
    uint16_t event;
    int32_t value;
    if (size != sizeof event + sizeof value) continue;
    memcpy(&event, data, sizeof event);
    memcpy(&value, data + sizeof event, sizeof value);
    watch_take(w, event, value);
  }
  watch_open_gate(w);
}

static void on_listener_event(uv_poll_t *poll, int status, int events) {
  (void)events;
  watch *w = poll->data;
  if (status == 0 && w->monitor) watch_drain(w);
}

static void on_watch_closed(uv_handle_t *h) {
  watch *w = h->data;
  transport *t = w->owner;
  free(w);
  on_handle_closed(t);
}

/* Before its router. Told to stop first: ZeroMQ loses the memory of an event whose second part finds nobody.
 * It waits for an event that is being written, which needs room: hence the drain. */
static void watch_close(transport *t) {
  watch *w = t->watch;
  if (!w) return;
  t->watch = NULL;
  uv_close((uv_handle_t *)&w->poll, on_watch_closed);
  watch_drain(w);
  accept_gate_remove(&w->gate);
  zmq_socket_monitor(w->router, NULL, 0);
  zmq_close(w->monitor);
  w->monitor = NULL;
}

#define LISTENER_EVENTS "inproc://listener"

/* Before bind, so that it hears which descriptor listens. */
static bool watch_open(transport *t, void *router) {
  watch *w = calloc(1, sizeof *w);
  int fd;
  size_t size = sizeof fd;
  if (!w) return false;
  w->owner = t;
  w->router = router;
  w->monitor = zmq_socket(t->context, ZMQ_PAIR);
  if (w->monitor &&
      zmq_socket_monitor(router, LISTENER_EVENTS,
                         ZMQ_EVENT_LISTENING | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED) == 0 &&
      zmq_connect(w->monitor, LISTENER_EVENTS) == 0 && zmq_getsockopt(w->monitor, ZMQ_FD, &fd, &size) == 0 &&
      uv_poll_init(t->loop, &w->poll, fd) == 0) {
    uv_poll_start(&w->poll, UV_READABLE, on_listener_event);
    w->poll.data = w;
    t->watch = w;
    t->handles++;
    watch_drain(w);
    return true;
  }
  if (w->monitor) zmq_close(w->monitor);
  free(w);
  return false;
}

/* --- keys --- */

static int open_keys(transport *t, err *e) {
  char folder[PATH_MAX];
  if (t->keys) return ERR_OK;
  int code = keys_folder(t->options.keys, folder, e);
  return code ? code : keys_open(&t->keys, folder, t->options.role, e);
}

/* Whoever connects to us: workers to an orchestrator, drafts to a target. */
static unsigned guests_of(wire_role role) {
  unsigned drafts = KEYS_ROLE(WIRE_ROLE_DRAFT);
  return role == WIRE_ROLE_ORCHESTRATOR ? drafts | KEYS_ROLE(WIRE_ROLE_TARGET) : drafts;
}

static void on_denied(void *owner, const char *address, size_t size) {
  transport *t = owner;
  if (t->watch) connection_limit_denied(&t->watch->connections, address, size, now_of(t));
}

static int protect_listener(channel *c, const char *address, err *e) {
  transport *t = c->owner;
  if (t->options.allow_plaintext || !endpoint_is_tcp(address)) return ERR_OK;
  int code = open_keys(t, e);
  const curve_gate_options gate = {.context = t->context,
                                   .loop = t->loop,
                                   .own = t->keys,
                                   .roles = guests_of(t->options.role),
                                   .log = t->options.log,
                                   .on_denied = on_denied,
                                   .owner = t};
  if (code == ERR_OK) code = curve_gate_open(&t->gate, &gate, e);
  if (code != ERR_OK) return code;
  c->keyed = true;
  if (curve_protect_listener(c->socket, keys_secret(t->keys))) return ERR_OK;
  return err_set(e, ERR_IO, "cannot ask for keys at %s: %s", address, zmq_strerror(zmq_errno()));
}

/* The key of who listens at an endpoint. */
static int key_of(transport *t, const char *endpoint, key_bytes *out, unsigned *roles, err *e) {
  const char *hex = endpoint_key(endpoint);
  err reading = {0};
  if (!hex) {
    *roles = KEYS_ROLE(WIRE_ROLE_ORCHESTRATOR);
    return keys_orchestrator(t->keys, out, e);
  }
  key_parse(hex, strlen(hex), out);
  *roles = keys_roles(t->keys, out, &reading);
  if (reading.code) return err_set(e, reading.code, "%s", reading.text);
  if (*roles) return ERR_OK;
  return err_set(e, ERR_DENIED,
                 "the key of the program at %.*s is not in %s: if it may be trusted, add its line, in which "
                 "%s stands",
                 ENDPOINT_PLAIN(endpoint), keys_allowed_path(t->keys), hex);
}

/* The key of whom this program would call; *needed false: the call goes without. */
static int find_key(transport *t, const char *endpoint, bool *needed, key_bytes *out, unsigned *roles,
                    err *e) {
  *needed = endpoint_is_tcp(endpoint) && (!t->options.allow_plaintext || endpoint_key(endpoint));
  int code = *needed ? open_keys(t, e) : ERR_OK;
  return *needed && code == ERR_OK ? key_of(t, endpoint, out, roles, e) : code;
}

int transport_check_call(transport *t, const char *endpoint, err *e) {
  key_bytes server;
  unsigned roles;
  bool needed;
  return find_key(t, endpoint, &needed, &server, &roles, e);
}

static int protect_call(channel *c, const char *endpoint, err *e) {
  transport *t = c->owner;
  key_bytes server;
  int code = find_key(t, endpoint, &c->keyed, &server, &c->roles, e);
  if (code != ERR_OK || !c->keyed || curve_protect_call(c->socket, t->keys, &server)) return code;
  return err_set(e, ERR_IO, "cannot use keys with %.*s: %s", ENDPOINT_PLAIN(endpoint),
                 zmq_strerror(zmq_errno()));
}

void transport_add_key(const transport *t, char *endpoint) {
  if (t->gate) endpoint_add_key(endpoint, keys_public(t->keys));
}

static bool set_role_options(channel *c) {
  return c->router ? set_router_options(c->socket) : set_dealer_options(c->socket);
}

/* A watched socket with its options, not yet bound or connected; NULL and *e. */
static channel *channel_open(transport *t, bool router, bool ipv6, err *e) {
  channel *c = calloc(1, sizeof *c);
  if (!c) {
    err_set(e, ERR_NOMEM, "out of memory for a socket");
    return NULL;
  }
  *c = (channel){.owner = t, .router = router};
  c->socket = zmq_socket(t->context, router ? ZMQ_ROUTER : ZMQ_DEALER);
  if (c->socket && set_common_options(c->socket, ipv6) && set_role_options(c) && channel_watch(c)) return c;
  err_set(e, ERR_IO, "cannot make a ZeroMQ socket: %s", zmq_strerror(zmq_errno()));
  if (c->socket) zmq_close(c->socket);
  free(c);
  return NULL;
}

/* --- sending --- */

static bool socket_send(channel *c, const void *data, size_t size, int flags) {
  int sent;
  do sent = zmq_send(c->socket, data, size, flags | ZMQ_DONTWAIT);
  while (sent < 0 && zmq_errno() == EINTR);
  return sent >= 0;
}

/* ZMTP 3.1, section 3: a flag and a length, of one byte up to 255. */
static uint64_t wire_bytes(size_t frame) {
  return frame + (frame > UINT8_MAX ? 9 : 2);
}

/* A send may take in the signal that messages have come: `look` makes up for it before the loop sleeps. */
static bool channel_send(channel *c, const peer *to, const codec_buffer *frame) {
  c->look = true;
  if (c->router && !socket_send(c, to->routing, to->routing_size, ZMQ_SNDMORE)) return false;
  if (!socket_send(c, frame->data, frame->size, 0)) return false;
  c->owner->counters.sent_bytes += wire_bytes(frame->size);
  return true;
}

static void hang_up(channel *c) {
  if (c->called[0]) zmq_disconnect(c->socket, c->called);
}

static bool dial(channel *c) {
  c->called_us = now_of(c->owner);
  c->answered = false;
  return set_options(c->socket, &(socket_option){ZMQ_IPV6, endpoint_is_ipv6(c->called)}, 1) &&
         zmq_connect(c->socket, c->called) == 0;
}

/* Calls an address in place of the one that was called. */
static bool call(channel *c, const char *address) {
  hang_up(c);
  snprintf(c->called, sizeof c->called, "%s", address);
  return dial(c);
}

static void look_up(channel *c) {
  name_lookup_drop(c->names);
  c->turn = 0;
  c->called_us = now_of(c->owner);
  c->names = name_lookup_start(c->address, &c->owner->looked_up);
}

/* The next address of the name; after the last one it is looked up again. */
static void call_name(channel *c) {
  const endpoint_numbers *found = c->names ? name_lookup_answer(c->names) : NULL;
  if (found && c->turn < found->count)
    call(c, found->list[c->turn++]);
  else if (found || !c->names)
    look_up(c);
}

/* ZeroMQ gives an address up for ever when the program there has refused the handshake: it had no key, or
 * asked for one where we have none. It may be another program now. A name's addresses are called in turn, as
 * a listener may be at one alone; where somebody has answered, the same once more. */
static void call_again(channel *c) {
  bool name = endpoint_has_name(c->address);
  if (now_of(c->owner) - c->called_us < (name ? TRANSPORT_NEXT_US : TRANSPORT_CALL_AGAIN_US)) return;
  if (name && !c->answered) {
    call_name(c);
  } else {
    hang_up(c);
    dial(c);
  }
}

/* The answer of a lookup that nothing was called with yet. */
static void take_names(channel *c) {
  const endpoint_numbers *found = c->names && c->turn == 0 ? name_lookup_answer(c->names) : NULL;
  if (!found) return;
  if (found->count > 0) {
    call_name(c);
  } else if (!c->logged) {
    c->logged = true;
    log_line(c->owner->options.log, LOG_WARNING,
             "no address of the host in %s is known (%s): it is looked up again until there is one",
             c->address, found->why);
  }
}

static void on_looked_up(uv_async_t *async) {
  transport *t = async->data;
  for (channel *c = t->channels; c; c = c->next)
    if (c->socket) take_names(c);
}

/* The first message is sent before the connection is up: it waits here, so that nobody waits for its
 * repetition. Everything later is dropped while a peer is away. */
static bool hold_hello(channel *c, const codec_buffer *frame) {
  if (c->router) return false;
  call_again(c);
  uint8_t *data = realloc(c->hello.data, frame->size);
  if (!data) return false;
  memcpy(data, frame->data, frame->size);
  c->hello = (codec_buffer){data, frame->size, frame->size};
  return true;
}

static void release_hello(channel *c) {
  int events = 0;
  size_t size = sizeof events;
  if (c->hello.size == 0 || zmq_getsockopt(c->socket, ZMQ_EVENTS, &events, &size) != 0) return;
  if (events & ZMQ_POLLIN) c->look = true;
  if (!(events & ZMQ_POLLOUT) || !channel_send(c, NULL, &c->hello)) return;
  c->hello.size = 0;
  c->owner->counters.sent++;
}

static void guest_greeted(transport *t, const peer *guest) {
  if (!t->watch) return;
  if (!connection_limit_greeted(&t->watch->connections, guest->connection, t->gate != NULL) && may_log(t))
    log_line(t->options.log, LOG_WARNING,
             "more than %d programs of one address: one more connection was closed (%" PRIu64 " so far)",
             CONNECTION_GUESTS_MAX, t->watch->connections.refused);
}

/* The frame that is being taken, in frames of ordinary size. */
static uint32_t frame_weight(const transport *t) {
  return 1 + (uint32_t)(t->frame_size / TRANSPORT_FRAME_WEIGHT);
}

/* It is of no use, and so may others be of whoever has sent it. */
static void count_useless(transport *t, const peer *from) {
  if (!t->watch ||
      connection_limit_useless(&t->watch->connections, from->connection, frame_weight(t), now_of(t)))
    return;
  if (may_log(t))
    log_line(t->options.log, LOG_WARNING,
             "peer %" PRIu64 " sends too much that cannot be used: its connection was closed", from->id);
}

/* May this message go to a peer that can ask for it as often as it likes? */
static bool is_within_replies(transport *t, peer *to, const msg *m) {
  uint64_t now = now_of(t);
  bool end = m->type == MSG_END,
       reply = m->type == MSG_ERROR || m->type == MSG_WELCOME || m->type == MSG_PONG;
  if (to->pinned || !(end || reply)) return true;
  if (end && log_limit_takes(&to->ends, now, TRANSPORT_END_BURST, TRANSPORT_END_EVERY_US)) return true;
  count_useless(t, to);
  return log_limit_takes(&to->replies, now, TRANSPORT_REPLY_BURST, TRANSPORT_REPLY_EVERY_US);
}

bool transport_send(transport *t, peer_id id, const msg *m) {
  err e = {0};
  peer *to = peer_table_find(&t->peers, id);
  channel *c = to && is_within_replies(t, to, m) ? to->link : NULL;
  if (c && codec_encode(m, &t->out, &e) != ERR_OK) {
    log_line(t->options.log, LOG_ERROR, "a message was not sent: %s", e.text);
    c = NULL;
  }
  if (c && channel_send(c, to, &t->out)) {
    if (m->type == MSG_WELCOME) {
      to->greeted = true;
      guest_greeted(t, to);
    }
    if (m->type == MSG_HELLO) c->hello.size = 0; /* an older one is not needed any more */
    t->counters.sent++;
    return true;
  }
  if (c && m->type == MSG_HELLO && hold_hello(c, &t->out)) return true;
  t->counters.dropped++;
  return false;
}

/* --- receiving --- */

/* ERROR is never answered by ERROR: two programs that do not understand each other must not talk for ever. */
static void refuse_frame(transport *t, peer *from, const msg *m, const err *e) {
  t->counters.bad_frames++;
  uint64_t bad = ++from->bad_frames;
  /* The 1st, 2nd, 4th, 8th...: a hostile peer does not fill the log, and neither do many together. */
  if ((bad & (bad - 1)) == 0 && may_log(t))
    log_line(t->options.log, LOG_WARNING, "bad frame %" PRIu64 " of peer %" PRIu64 " refused: %s", bad,
             from->id, e->text);
  if (m->type == MSG_ERROR) return;
  msg reply = {.type = MSG_ERROR, .session = m->session, .epoch = m->epoch};
  reply.u.error = (msg_error){e->code, {e->text, (uint32_t)strlen(e->text)}};
  transport_send(t, from->id, &reply);
}

/* Nobody has greeted this peer yet: all that it may send is HELLO, which is small. */
static bool is_too_large(const peer *from, size_t size) {
  return !from->pinned && !from->greeted && size > WIRE_GREETING_MAX;
}

static void refuse_large(transport *t, peer *from, size_t size) {
  err e;
  err_set(&e, ERR_LIMIT,
          "R-GREETING-SIZE: a frame of %zu bytes before the greeting, the limit is %d: say HELLO first", size,
          WIRE_GREETING_MAX);
  refuse_frame(t, from, &(msg){0}, &e);
}

/* What the connection tells of whoever has sent HELLO or WELCOME. */
static void add_origin(msg_hello *h, const peer *from, zmq_msg_t *part) {
  const channel *c = from->link;
  h->seen = location_of(zmq_msg_gets(part, "Peer-Address"));
  h->roles = c->router ? curve_user_roles(from->user) : c->roles;
}

/* It may be known, and have come back by another connection. Not within a step of the owner, who may hear of
 * others that have gone, and may close the transport: false then. */
static bool note_guest(transport *t, peer *from, zmq_msg_t *part) {
  int connection = zmq_msg_get(part, ZMQ_SRCFD);
  if (connection != from->connection) {
    watch_drain(t->watch); /* it must be counted */
    if (!t->watch) return false;
    from->connection = connection;
    if (from->greeted) guest_greeted(t, from);
  }
  bool within = true;
  uint64_t now = now_of(t);
  for (uint32_t i = frame_weight(t); i > 0 && within; i--)
    within = log_limit_takes(&from->frames, now, TRANSPORT_FRAME_BURST, TRANSPORT_FRAME_EVERY_US);
  if (!within) count_useless(t, from);
  return true;
}

static void take_frame(transport *t, peer *from, zmq_msg_t *part) {
  msg m;
  err e = {0};
  t->frame_size = zmq_msg_size(part);
  if (!from->pinned && !note_guest(t, from, part)) return;
  t->counters.received_bytes += wire_bytes(zmq_msg_size(part));
  if (is_too_large(from, zmq_msg_size(part))) {
    refuse_large(t, from, zmq_msg_size(part));
    return;
  }
  arena_reset(&t->in);
  if (codec_decode(zmq_msg_data(part), zmq_msg_size(part), &t->in, &m, &e) != ERR_OK) {
    refuse_frame(t, from, &m, &e);
    return;
  }
  if (m.type == MSG_HELLO || m.type == MSG_WELCOME) add_origin(&m.u.hello, from, part);
  t->counters.received++;
  t->options.on_message(t->options.context, from->id, &m);
}

typedef enum { TAKE_NONE, TAKE_PART, TAKE_LAST } take;

static take part_receive(channel *c, zmq_msg_t *part) {
  int size;
  do size = zmq_msg_recv(part, c->socket, ZMQ_DONTWAIT);
  while (size < 0 && zmq_errno() == EINTR);
  if (size < 0) return TAKE_NONE;
  c->taken += (size_t)size;
  return zmq_msg_more(part) ? TAKE_PART : TAKE_LAST;
}

static void refuse_parts(transport *t, peer *from) {
  err e;
  err_set(&e, ERR_PROTOCOL, "R-PARTS: a message is one frame in one part");
  refuse_frame(t, from, &(msg){0}, &e);
}

/* Who has sent what begins with this part of a ROUTER's. NULL: nobody that the gate has let in. */
static peer *sender(channel *c, zmq_msg_t *part) {
  const char *user = c->keyed ? zmq_msg_gets(part, "User-Id") : "";
  if (!user || (c->keyed && !curve_user_roles(user)) || strlen(user) >= PEER_TABLE_USER_MAX) return NULL;
  return peer_table_of_routing(&c->owner->peers, c, zmq_msg_data(part), zmq_msg_size(part), user);
}

/* One message, whole: a ROUTER's begins with the part that says who sent it. False: none waits. */
static bool channel_receive(channel *c) {
  transport *t = c->owner;
  zmq_msg_t part;
  zmq_msg_init(&part);
  take got = part_receive(c, &part);
  bool any = got != TAKE_NONE;
  peer *from = NULL;
  if (any && c->router) {
    from = sender(c, &part);
    got = got == TAKE_PART ? part_receive(c, &part) : TAKE_NONE;
  } else if (any) {
    from = peer_table_find(&t->peers, c->peer);
    c->answered = true;
  }
  if (got == TAKE_LAST && from) take_frame(t, from, &part);
  if (any && got != TAKE_LAST) {
    while (got == TAKE_PART) got = part_receive(c, &part);
    if (from) refuse_parts(t, from);
  }
  zmq_msg_close(&part);
  return any;
}

/* ZMQ_FD is edge-triggered: take until nothing is left, or come back before the loop sleeps. */
static void channel_drain(channel *c) {
  c->look = false;
  c->taken = 0;
  for (int i = 0; i < TRANSPORT_TURN_MAX && c->taken < TRANSPORT_TURN_BYTES; i++) {
    if (!c->socket) return; /* the owner disconnected it */
    if (channel_receive(c)) continue;
    release_hello(c);
    return;
  }
  c->look = true;
}

static void on_readable(uv_poll_t *poll, int status, int events) {
  (void)events;
  const channel *c = poll->data;
  transport *t = c->owner;
  if (c->router && t->watch)
    watch_drain(t->watch); /* connections that are too many end before they are read */
  if (status == 0) channel_drain(poll->data);
}

static void on_idle(uv_idle_t *idle) {
  (void)idle;
}

/* Was there a message lately, so that another one may follow at once? */
static bool is_active(transport *t) {
  if (!t->options.busy_poll_us) return false;
  const uint64_t messages = t->counters.sent + t->counters.received, now = now_of(t);
  if (messages != t->active) t->active_us = now;
  t->active = messages;
  return now - t->active_us < t->options.busy_poll_us;
}

/* Just before the loop would sleep. It does not when something came: one turn of the loop then ends here too.
 */
static void on_prepare(uv_prepare_t *prepare) {
  transport *t = prepare->data;
  uint64_t before = t->counters.received;
  for (channel *c = t->channels; c; c = c->next)
    if (c->look && c->socket) channel_drain(c);
  bool again = t->counters.received != before || is_active(t);
  for (channel *c = t->channels; c; c = c->next) again |= c->look && c->socket;
  if (uv_is_closing((uv_handle_t *)&t->idle)) return;
  if (again)
    uv_idle_start(&t->idle, on_idle);
  else
    uv_idle_stop(&t->idle);
}

/* --- life --- */

static int open_parts(transport *t, uv_loop_t *loop) {
  if (peer_table_init(&t->peers) != ERR_OK) return ERR_NOMEM;
  if ((t->context = zmq_ctx_new()) && uv_async_init(loop, &t->looked_up, on_looked_up) == 0) return ERR_OK;
  if (t->context) zmq_ctx_term(t->context);
  peer_table_fini(&t->peers);
  return ERR_NOMEM;
}

int transport_open(transport **out, uv_loop_t *loop, const transport_options *o, err *e) {
  int code = means_check(e);
  if (code) return code;
  transport *t = calloc(1, sizeof *t);
  if (!t || open_parts(t, loop) != ERR_OK) {
    free(t);
    return err_set(e, ERR_NOMEM, "out of memory or descriptors for the transport");
  }
  t->loop = loop;
  t->options = *o;
  if (!o->clock) t->options.clock = clock_us;
  arena_init(&t->in, CODEC_ARENA_MAX);
  t->prepare.data = t->idle.data = t->looked_up.data = t;
  uv_prepare_init(loop, &t->prepare);
  uv_idle_init(loop, &t->idle);
  uv_prepare_start(&t->prepare, on_prepare);
  uv_unref((uv_handle_t *)&t->prepare); /* sockets alone keep the loop alive */
  uv_unref((uv_handle_t *)&t->idle);
  uv_unref((uv_handle_t *)&t->looked_up);
  t->handles = 3;
  *out = t;
  return ERR_OK;
}

/* ZeroMQ leaves it behind. */
static void note_file(transport *t, const char *bound) {
  const char *path = endpoint_path(bound);
  if (path && stat(path, &t->file) == 0) snprintf(t->file_path, sizeof t->file_path, "%s", path);
}

/* While it is still ours: later, another program may have taken its place. */
static void remove_file(transport *t) {
  struct stat now;
  bool own = t->file_path[0] && stat(t->file_path, &now) == 0 && now.st_dev == t->file.st_dev &&
             now.st_ino == t->file.st_ino;
  if (own) unlink(t->file_path);
}

static void on_closed(uv_handle_t *h) {
  on_handle_closed(h->data);
}

void transport_close(transport *t) {
  if (!t) return;
  uv_close((uv_handle_t *)&t->prepare, on_closed);
  uv_close((uv_handle_t *)&t->idle, on_closed);
  uv_close((uv_handle_t *)&t->looked_up, on_closed);
  watch_close(t);
  remove_file(t);
  for (channel *c = t->channels; c; c = c->next) channel_close(c);
  curve_gate_close(t->gate);
  keys_close(t->keys);
  t->gate = NULL;
  t->keys = NULL;
  while (zmq_ctx_term(t->context) != 0 && zmq_errno() == EINTR) continue;
}

static int bind_failed(const char *endpoint, err *e) {
  int reason = zmq_errno();
  if (reason == EADDRINUSE)
    return err_set(e, ERR_IO,
                   "endpoint %s is in use: end the program that listens there or choose another port",
                   endpoint);
  if (reason == EACCES)
    return err_set(e, ERR_IO,
                   "endpoint %s may not be bound by this user: choose a port above 1023 or another path",
                   endpoint);
  bool tcp = endpoint_is_tcp(endpoint);
  return err_set(e, ERR_IO, "cannot bind %s: %s; %s", endpoint, zmq_strerror(reason),
                 tcp ? "is that an address of this machine?" : "does its folder exist?");
}

/* An ipc socket belongs to its owner alone from its first moment, whatever the umask is: who may write to it
 * may connect. zmq_bind makes it on this thread. */
static bool bind_privately(void *socket, const char *address) {
  mode_t before = umask(S_IXUSR | S_IRWXG | S_IRWXO);
  bool bound = zmq_bind(socket, address) == 0;
  int reason = errno;
  umask(before);
  errno = reason;
  return bound;
}

int transport_bind(transport *t, const char *endpoint, char *bound, size_t bound_size, err *e) {
  char address[ENDPOINT_MAX];
  int code = endpoint_check_bind(endpoint, t->options.allow_plaintext, address, e);
  if (code != ERR_OK) return code;
  channel *c = channel_open(t, true, endpoint_is_ipv6(address), e);
  if (!c) return ERR_IO;
  if (!watch_open(t, c->socket))
    code = err_set(e, ERR_IO, "cannot watch endpoint %s: is the limit of open files (ulimit -n) too low?",
                   endpoint);
  else if ((code = protect_listener(c, address, e)) == ERR_OK && !bind_privately(c->socket, address))
    code = bind_failed(endpoint, e);
  else if (code == ERR_OK && zmq_getsockopt(c->socket, ZMQ_LAST_ENDPOINT, bound, &bound_size) != 0)
    code = err_set(e, ERR_ARG, "no room for the address of %s", endpoint);
  if (code == ERR_OK) {
    note_file(t, bound);
    watch_drain(t->watch); /* which descriptor listens */
    return ERR_OK;
  }
  watch_close(t);
  channel_close(c);
  curve_gate_close(t->gate);
  t->gate = NULL;
  return code;
}

/* Bytes of the endpoint that ZeroMQ is given: all but a key. */
static int call_size(const char *endpoint) {
  const char *key = endpoint_key(endpoint);
  return key ? (int)(key - 1 - endpoint) : ENDPOINT_MAX - 1;
}

peer_id transport_connect(transport *t, const char *endpoint, err *e) {
  if (endpoint_check(endpoint, e) != ERR_OK) return 0;
  channel *c = channel_open(t, false, endpoint_is_ipv6(endpoint), e);
  if (!c) return 0;
  if (protect_call(c, endpoint, e) != ERR_OK) {
    channel_close(c);
    return 0;
  }
  snprintf(c->address, sizeof c->address, "%.*s", call_size(endpoint), endpoint);
  peer *made = peer_table_pin(&t->peers, c);
  bool name = endpoint_has_name(c->address);
  if (made && name) look_up(c);
  if (made && (name || call(c, c->address))) return c->peer = made->id;
  if (made) {
    err_set(e, ERR_ARG, "cannot connect to %s: %s; check the address", c->address, zmq_strerror(zmq_errno()));
    peer_table_remove(&t->peers, made);
  } else {
    err_set(e, ERR_FULL, "%d connections are open, no more are allowed: end some first",
            PEER_TABLE_PINNED_MAX);
  }
  channel_close(c);
  return 0;
}

void transport_disconnect(transport *t, peer_id id) {
  peer *gone = peer_table_find(&t->peers, id);
  if (!gone) return;
  channel *c = gone->link;
  peer_table_remove(&t->peers, gone);
  if (!c->router) channel_close(c);
}

transport_counters transport_count(const transport *t) {
  return t->counters;
}
