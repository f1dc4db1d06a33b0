#include "wire/machine_host.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define HOST_SIGNALS      3
#define HOST_RETRY_US     1000   /* until the next look at a machine whose deadline a tick did not move */
#define HOST_STALL_US     500000 /* a tick that is so late: the process, or the machine, was stopped */
#define HOST_CATCH_UP_US  50000  /* then what others said meanwhile comes first */
#define HOST_CONNECTS_MAX 64     /* in one step; a machine asks again for what was not answered */

typedef struct connected { /* answer to an ACTION_CONNECT, not yet given */
  uint64_t tag;
  peer_id peer;
} connected;

struct machine_host {
  uv_loop_t *loop;
  machine_host_options options;
  transport *transport;
  /* The machine's, what it wants and `armed_us`. Held for a step and never while a message is sent. */
  pthread_mutex_t lock;
  actions wanted;    /* by steps, not yet carried out */
  actions under_way; /* the loop's: being carried out */
  int timer_fd;
  uv_poll_t timer;
  uint64_t armed_us;    /* what the timer is set to; MACHINE_NEVER: off */
  uint64_t due_us;      /* when it should go off: not before it was set */
  uint64_t catch_up_us; /* no tick before this: the sockets come first */
  uv_async_t elsewhere; /* a step on another thread wants something of the loop */
  uv_signal_t signals[HOST_SIGNALS];
  int handles; /* of uv, not yet closed */
  connected connected[HOST_CONNECTS_MAX];
  int32_t connected_count;
  bool stepping, draining;
  int exit_code;
};

static uint64_t now_of(const machine_host *h) {
  return h->options.clock();
}

/* --- actions --- */

void machine_host_exit(machine_host *h, int code) {
  if (h->exit_code < 0) h->exit_code = code;
  uv_stop(h->loop);
}

static void do_send(machine_host *h, const action *a) {
  transport_send(h->transport, a->peer, a->message);
}

/* The answer is an event, and events are not given inside a step. */
static void do_connect(machine_host *h, const action *a) {
  err e;
  if (h->connected_count == HOST_CONNECTS_MAX) return;
  peer_id peer = transport_connect(h->transport, a->text, &e);
  if (!peer) log_line(h->options.log, LOG_ERROR, "%s", e.text);
  h->connected[h->connected_count++] = (connected){a->tag, peer};
}

static void do_disconnect(machine_host *h, const action *a) {
  transport_disconnect(h->transport, a->peer);
}

static void do_log(machine_host *h, const action *a) {
  log_line(h->options.log, (log_level)a->level, "%s", a->text);
}

static void do_exit(machine_host *h, const action *a) {
  machine_host_exit(h, a->code);
}

static void carry_out(machine_host *h, actions *a) {
  static void (*const table[])(machine_host *, const action *) = {
      [ACTION_SEND] = do_send, [ACTION_CONNECT] = do_connect, [ACTION_DISCONNECT] = do_disconnect,
      [ACTION_LOG] = do_log,   [ACTION_EXIT] = do_exit,
  };
  for (int32_t i = 0; i < a->count; i++) table[a->list[i].kind](h, &a->list[i]);
  actions_reset(a);
}

/* --- steps --- */

/* On the loop's thread: NULL is no event, but what steps elsewhere have left is done. Actions are carried out
 * in the order of the steps, whichever thread made them. */
static void one_step(machine_host *h, const event *e) {
  const machine *m = &h->options.machine;
  pthread_mutex_lock(&h->lock);
  if (e) m->step(m->self, e, now_of(h), &h->wanted);
  if (h->options.after_step) h->options.after_step(h->options.context);
  actions wanted = h->wanted;
  h->wanted = h->under_way;
  h->under_way = wanted;
  pthread_mutex_unlock(&h->lock);
  carry_out(h, &h->under_way);
}

static void give_connected(machine_host *h) {
  for (int32_t i = 0; i < h->connected_count; i++) { /* a step may add more */
    connected c = h->connected[i];
    one_step(h, &(event){.kind = EVENT_CONNECTED, .tag = c.tag, .peer = c.peer});
  }
  h->connected_count = 0;
}

static void set_timer(machine_host *h, uint64_t at) {
  if (h->options.clock != clock_us) return;
  struct itimerspec t = {0}; /* all zero: off */
  if (at != MACHINE_NEVER)
    t.it_value = (struct timespec){(time_t)(at / 1000000), (long)(at % 1000000) * 1000};
  if (at == 0) t.it_value.tv_nsec = 1;
  int code = timerfd_settime(h->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
  assert(code == 0);
  (void)code;
}

static void look_at_deadline(machine_host *h, bool after_tick) {
  const machine *m = &h->options.machine;
  if (!m->step) return;
  pthread_mutex_lock(&h->lock);
  uint64_t at = m->deadline(m->self);
  if (after_tick) { /* a deadline that has passed although the machine was just woken must not make a busy
                       loop */
    uint64_t now = now_of(h);
    if (at <= now) at = now + HOST_RETRY_US;
  }
  if (at < h->catch_up_us) at = h->catch_up_us;
  bool moved = at != h->armed_us;
  h->armed_us = at;
  pthread_mutex_unlock(&h->lock);
  if (!moved) return;
  uint64_t now = now_of(h);
  h->due_us = at > now ? at : now;
  set_timer(h, at);
}

static void end_step(machine_host *h, bool tick) {
  give_connected(h);
  h->stepping = false;
  look_at_deadline(h, tick);
}

void machine_host_step(machine_host *h, const event *e) {
  assert(!h->stepping);
  if (!h->options.machine.step) return;
  h->stepping = true;
  one_step(h, e);
  end_step(h, e->kind == EVENT_TICK);
}

void machine_host_step_elsewhere(machine_host *h, const event *e, bool (*after)(void *context),
                                 void *context) {
  const machine *m = &h->options.machine;
  pthread_mutex_lock(&h->lock);
  m->step(m->self, e, now_of(h), &h->wanted);
  bool news = after(context) || h->wanted.count > 0 || m->deadline(m->self) < h->armed_us;
  pthread_mutex_unlock(&h->lock);
  if (news) uv_async_send(&h->elsewhere);
}

void machine_host_perform(machine_host *h, actions *a) {
  assert(!h->stepping && h->options.machine.step);
  h->stepping = true;
  carry_out(h, a);
  end_step(h, false);
}

/* --- what happens outside --- */

static void on_message(void *context, peer_id from, const msg *m) {
  machine_host_step(context, &(event){.kind = EVENT_MESSAGE, .peer = from, .message = m});
}

static void on_disconnected(void *context, peer_id from) {
  machine_host_step(context, &(event){.kind = EVENT_DISCONNECTED, .peer = from});
}

static void on_elsewhere(uv_async_t *async) {
  machine_host *h = async->data;
  if (!h->options.machine.step) return;
  h->stepping = true;
  one_step(h, NULL);
  end_step(h, false);
}

static void deadline_came(machine_host *h) {
  pthread_mutex_lock(&h->lock);
  h->armed_us = MACHINE_NEVER;
  pthread_mutex_unlock(&h->lock);
  uint64_t now = now_of(h);
  if (!h->catch_up_us && now >= h->due_us + HOST_STALL_US) { /* once: a tick is not put off for ever */
    h->catch_up_us = now + HOST_CATCH_UP_US;
    look_at_deadline(h, false);
    return;
  }
  h->catch_up_us = 0;
  machine_host_step(h, &(event){.kind = EVENT_TICK});
}

static void on_timer(uv_poll_t *poll, int status, int events) {
  (void)status;
  (void)events;
  machine_host *h = poll->data;
  uint64_t times;
  if (read(h->timer_fd, &times, sizeof times) == (ssize_t)sizeof times) deadline_came(h);
}

void machine_host_clock_moved(machine_host *h) {
  pthread_mutex_lock(&h->lock);
  bool came = now_of(h) >= h->armed_us;
  pthread_mutex_unlock(&h->lock);
  if (came) deadline_came(h);
}

static void on_signal(uv_signal_t *handle, int number) {
  machine_host *h = handle->data;
  if (number == SIGHUP || h->draining || !h->options.machine.step) {
    machine_host_exit(h, MACHINE_HOST_EXIT_SIGNAL);
    return;
  }
  h->draining = true;
  machine_host_step(h, &(event){.kind = EVENT_DRAIN});
}

/* --- life --- */

static bool is_ignored(int number) {
  struct sigaction a;
  return sigaction(number, NULL, &a) == 0 && a.sa_handler == SIG_IGN;
}

static bool watch_signals(machine_host *h) {
  static const int numbers[HOST_SIGNALS] = {SIGTERM, SIGINT, SIGHUP};
  for (int i = 0; i < HOST_SIGNALS; i++) {
    uv_signal_t *s = &h->signals[i];
    if (uv_signal_init(h->loop, s) != 0) return false;
    s->data = h;
    h->handles++;
    if (!is_ignored(numbers[i]) && uv_signal_start(s, on_signal, numbers[i]) != 0) return false;
    uv_unref((uv_handle_t *)s);
  }
  return true;
}

static bool watch_timer(machine_host *h) {
  h->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (h->timer_fd < 0 || uv_poll_init(h->loop, &h->timer, h->timer_fd) != 0) return false;
  h->timer.data = h;
  h->handles++;
  return uv_poll_start(&h->timer, UV_READABLE, on_timer) == 0;
}

static bool watch_elsewhere(machine_host *h) {
  if (uv_async_init(h->loop, &h->elsewhere, on_elsewhere) != 0) return false;
  h->elsewhere.data = h;
  h->handles++;
  uv_unref((uv_handle_t *)&h->elsewhere); /* no reason to go on */
  return true;
}

static void host_free(machine_host *h) {
  if (h->timer_fd >= 0) close(h->timer_fd);
  actions_fini(&h->wanted);
  actions_fini(&h->under_way);
  pthread_mutex_destroy(&h->lock);
  free(h);
}

int machine_host_open(machine_host **out, uv_loop_t *loop, const machine_host_options *o, err *e) {
  *out = NULL;
  machine_host *h = calloc(1, sizeof *h);
  if (!h) return err_set(e, ERR_NOMEM, "no memory for the event loop");
  h->loop = loop;
  h->options = *o;
  if (!o->clock) h->options.clock = clock_us;
  h->timer_fd = -1;
  h->armed_us = MACHINE_NEVER;
  h->exit_code = -1;
  actions_init(&h->wanted);
  actions_init(&h->under_way);
  pthread_mutex_init(&h->lock, NULL);
  transport_options t = {.on_message = on_message,
                         .on_disconnected = on_disconnected,
                         .context = h,
                         .self = o->self,
                         .role = o->role,
                         .keys = o->keys,
                         .allow_plaintext = o->allow_plaintext,
                         .busy_poll_us = o->busy_poll_us,
                         .clock = o->clock,
                         .log = o->log};
  int code = transport_open(&h->transport, loop, &t, e);
  if (code == ERR_OK && !(watch_timer(h) && watch_elsewhere(h) && watch_signals(h)))
    code = err_set(e, ERR_IO,
                   "cannot watch timers and signals: is the limit of open files (ulimit -n) too low?");
  if (code != ERR_OK) {
    machine_host_close(h);
    return code;
  }
  *out = h;
  return ERR_OK;
}

static void on_handle_closed(uv_handle_t *handle) {
  machine_host *h = handle->data;
  if (--h->handles == 0) host_free(h);
}

void machine_host_close(machine_host *h) {
  if (!h) return;
  transport_close(h->transport);
  h->transport = NULL;
  if (h->handles == 0) {
    host_free(h);
    return;
  }
  if (h->timer.data) uv_close((uv_handle_t *)&h->timer, on_handle_closed);
  if (h->elsewhere.data) uv_close((uv_handle_t *)&h->elsewhere, on_handle_closed);
  for (int i = 0; i < HOST_SIGNALS; i++)
    if (h->signals[i].data) uv_close((uv_handle_t *)&h->signals[i], on_handle_closed);
}

transport *machine_host_transport(machine_host *h) {
  return h->transport;
}

void machine_host_set_machine(machine_host *h, machine m) {
  h->options.machine = m;
  look_at_deadline(h, false);
}

int machine_host_exit_code(const machine_host *h) {
  return h->exit_code;
}
