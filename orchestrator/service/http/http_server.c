#include "orchestrator/service/http/http_exchanges.h"
#include "orchestrator/service/http/http_server.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct http_server {
  struct MHD_Daemon *daemon;
  http_server_options options;
  http_exchanges exchanges;
  uv_loop_t *loop;
  uv_poll_t poll;
  uv_timer_t timer;
  int handles; /* that are not closed yet */
  int listener;
  uint16_t port;
};

/* ---- the loop ---- */

static void turn(http_server *s);

static void on_timer(uv_timer_t *timer) {
  turn(timer->data);
}

static void on_readable(uv_poll_t *poll, int status, int events) {
  (void)status;
  (void)events;
  turn(poll->data);
}

/* Does all that can be done now, and comes again when libmicrohttpd wants to: for what is left, or for a
 * connection that is idle for too long. */
static void turn(http_server *s) {
  MHD_UNSIGNED_LONG_LONG ms = 0;
  MHD_run(s->daemon);
  if (MHD_get_timeout(s->daemon, &ms) == MHD_YES)
    uv_timer_start(&s->timer, on_timer, ms, 0);
  else
    uv_timer_stop(&s->timer);
}

static void on_closed(uv_handle_t *h) {
  http_server *s = h->data;
  if (--s->handles == 0) free(s);
}

static void start_handles(http_server *s, int descriptor) {
  uv_poll_init(s->loop, &s->poll, descriptor);
  uv_timer_init(s->loop, &s->timer);
  s->poll.data = s->timer.data = s;
  s->handles = 2;
  uv_poll_start(&s->poll, UV_READABLE, on_readable);
}

/* ---- the address ---- */

static int bind_first(const struct addrinfo *list, int *out) {
  int reason = EADDRNOTAVAIL;
  for (const struct addrinfo *a = list; a; a = a->ai_next) {
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol), on = 1;
    if (fd < 0) {
      reason = errno;
      continue;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) {
      *out = fd;
      return 0;
    }
    reason = errno;
    close(fd);
  }
  return reason;
}

static uint16_t port_of(int fd) {
  struct sockaddr_storage a;
  socklen_t size = sizeof a;
  if (getsockname(fd, (struct sockaddr *)&a, &size) != 0) return 0;
  return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                       : ((struct sockaddr_in *)&a)->sin_port);
}

static int listen_at(http_server *s, err *e) {
  const http_server_options *o = &s->options;
  const struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
  struct addrinfo *list;
  char port[8];
  snprintf(port, sizeof port, "%u", o->port);
  int rc = getaddrinfo(o->host, port, &wanted, &list);
  if (rc)
    return err_set(e, ERR_ARG, "--host %s is no address of this machine: %s", o->host,
                   rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
  int reason = bind_first(list, &s->listener);
  freeaddrinfo(list);
  if (reason == EADDRINUSE)
    return err_set(e, ERR_IO,
                   "port %u of %s is in use: end the program that listens there, or choose another "
                   "by --port",
                   o->port, o->host);
  if (reason == EACCES)
    return err_set(e, ERR_IO, "port %u may not be bound by this user: choose one above 1023 by --port",
                   o->port);
  if (reason)
    return err_set(e, ERR_IO, "cannot listen at %s port %u: %s", o->host, o->port, strerror(reason));
  s->port = port_of(s->listener);
  return ERR_OK;
}

/* ---- the daemon ---- */

static void on_log(void *context, const char *format, va_list arguments) {
  http_server *s = context;
  char line[256];
  vsnprintf(line, sizeof line, format, arguments);
  line[strcspn(line, "\n")] = 0;
  log_line(s->options.log, LOG_DEBUG, "http: %s", line);
}

static int start_daemon(http_server *s, err *e) {
  const http_tls *tls = s->options.tls;
  const struct MHD_OptionItem secure[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, tls ? tls->certificate.data : NULL},
                                          {MHD_OPTION_HTTPS_MEM_KEY, 0, tls ? tls->key.data : NULL},
                                          {MHD_OPTION_HTTPS_PRIORITIES, 0, HTTP_TLS_PRIORITIES},
                                          {MHD_OPTION_END, 0, NULL}};
  const struct MHD_OptionItem *more = tls ? secure : &secure[3];
  s->daemon = MHD_start_daemon(
      MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (tls ? MHD_USE_TLS : 0), 0, NULL, NULL,
      http_exchanges_on_request, &s->exchanges, MHD_OPTION_EXTERNAL_LOGGER, on_log, s,
      MHD_OPTION_LISTEN_SOCKET, s->listener, MHD_OPTION_NOTIFY_COMPLETED, http_exchanges_on_completed,
      &s->exchanges, MHD_OPTION_NOTIFY_CONNECTION, http_exchanges_on_connection, &s->exchanges,
      MHD_OPTION_CONNECTION_LIMIT, (unsigned)HTTP_CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
      (unsigned)HTTP_IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTP_CONNECTION_MEMORY,
      MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_ARRAY, more, MHD_OPTION_END);
  if (!s->daemon) {
    close(s->listener);
    return err_set(e, ERR_IO,
                   "the HTTP server cannot start: is the limit of open files (ulimit -n) too low?");
  }
  const union MHD_DaemonInfo *epoll = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD);
  start_handles(s, epoll->epoll_fd);
  return ERR_OK;
}

int http_server_open(http_server **out, uv_loop_t *loop, const http_server_options *o, err *e) {
  http_server *s = calloc(1, sizeof *s);
  if (!s) return err_set(e, ERR_NOMEM, "out of memory for the HTTP server");
  s->options = *o;
  s->loop = loop;
  s->exchanges = (http_exchanges){.loop = loop,
                                  .turn = &s->timer,
                                  .on_turn = on_timer,
                                  .on_request = o->on_request,
                                  .on_gone = o->on_gone,
                                  .owner = o->owner};
  int rc = listen_at(s, e);
  if (rc == ERR_OK) rc = start_daemon(s, e);
  if (rc) {
    free(s);
    return rc;
  }
  *out = s;
  return ERR_OK;
}

void http_server_close(http_server *s) {
  if (!s) return;
  http_exchanges_break(&s->exchanges);
  uv_close((uv_handle_t *)&s->poll, on_closed);
  uv_close((uv_handle_t *)&s->timer, on_closed);
  MHD_stop_daemon(s->daemon); /* closes the listener too */
}

uint16_t http_server_port(const http_server *s) {
  return s->port;
}

int32_t http_server_connections(const http_server *s) {
  const union MHD_DaemonInfo *i = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
  return i ? (int32_t)i->num_connections : 0;
}
