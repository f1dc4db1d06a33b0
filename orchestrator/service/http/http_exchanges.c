#include "orchestrator/service/http/http_exchanges.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define STREAM_BLOCK (16u << 10) /* bytes that libmicrohttpd asks for at a time */

typedef struct watch { /* of a connection: tells that the client has hung up */
  uv_poll_t poll;
  http_exchanges *all;
  http_exchange *exchange; /* that is under way, or NULL */
  int descriptor;
  bool closed;
} watch;

typedef struct added_header {
  const char *name;
  char *value;
} added_header;

struct http_exchange {
  http_exchanges *all;
  struct MHD_Connection *connection;
  http_exchange *next, **link; /* in the list of all */
  void *user;
  char *method, *path;
  char *body; /* [body_size], then a NUL */
  size_t body_size, body_capacity;
  unsigned problem;
  enum { RECEIVING, OWNED, STREAMED, DONE } state; /* the owner has it in the two between */
  bool broken;                                     /* the connection is to be closed, whatever is missing */
  bool suspended;                                  /* libmicrohttpd does not look at it until `wake` */
  unsigned status;
  struct MHD_Response *response; /* until it is queued */
  added_header headers[HTTP_HEADERS_MAX];
  int header_count;
  char *out; /* [out_size] of a stream; out_sent of them are taken */
  size_t out_size, out_capacity, out_sent;
  watch *watch; /* NULL: none could be made */
};

static bool is_owned(const http_exchange *x) {
  return x->state == OWNED || x->state == STREAMED;
}

static int descriptor_of(const http_exchange *x) {
  const union MHD_ConnectionInfo *i =
      MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  return i ? i->connect_fd : -1;
}

static void suspend(http_exchange *x) {
  MHD_suspend_connection(x->connection);
  x->suspended = true;
}

static void wake(http_exchange *x) {
  if (!x->suspended) return;
  x->suspended = false;
  MHD_resume_connection(x->connection);
  uv_timer_start(x->all->turn, x->all->on_turn, 0, 0);
}

/* ---- the end ---- */

static void tell_gone(http_exchange *x) {
  bool owned = is_owned(x);
  x->state = DONE;
  if (owned && x->user) x->all->on_gone(x->all->owner, x);
  x->user = NULL;
}

static void break_it(http_exchange *x) {
  x->broken = true;
  tell_gone(x);
  wake(x);
}

void http_exchanges_break(http_exchanges *all) {
  for (http_exchange *x = all->first; x; x = x->next) break_it(x);
}

static void exchange_free(http_exchange *x) {
  if (x->watch) x->watch->exchange = NULL;

  *x->link = x->next;
  if (x->next) x->next->link = x->link;
  if (x->response) MHD_destroy_response(x->response);
  for (int i = 0; i < x->header_count; i++) free(x->headers[i].value);
  x->all->body_bytes -= x->body_capacity;
  free(x->method);
  free(x->path);
  free(x->body);
  free(x->out);
  free(x);
}

void http_exchanges_on_completed(void *all, struct MHD_Connection *c, void **exchange,
                                 enum MHD_RequestTerminationCode why) {
  http_exchange *x = *exchange;
  (void)all;
  (void)c;
  (void)why;
  *exchange = NULL;
  if (!x) return;
  tell_gone(x);
  exchange_free(x);
}

/* ---- hanging up ---- */

/* libmicrohttpd is told of new bytes by edges, and does not read again what came up short: if a part of a
 * request and the client's end come together, it never sees the end, and it looks at no suspended connection
 * at all. A shutdown is an event of its own, which it does see. Who has the whole request by now, and an
 * answer at once, is still answered. */
static void on_disconnect(uv_poll_t *poll, int status, int events) {
  watch *w = poll->data;
  if (status >= 0 && !(events & UV_DISCONNECT)) return;
  uv_poll_stop(poll);
  w->all->on_turn(w->all->turn);
  if (w->closed || (w->exchange && w->exchange->state == DONE)) return;
  shutdown(w->descriptor, SHUT_RDWR);
  if (w->exchange && is_owned(w->exchange)) break_it(w->exchange);
}

static void on_watch_closed(uv_handle_t *h) {
  free(h->data);
}

static watch *watch_new(http_exchanges *all, int descriptor) {
  watch *w = calloc(1, sizeof *w);
  if (!w) return NULL;
  if (uv_poll_init(all->loop, &w->poll, descriptor) != 0) {
    free(w);
    return NULL;
  }
  w->poll.data = w;
  w->all = all;
  w->descriptor = descriptor;
  uv_poll_start(&w->poll, UV_DISCONNECT, on_disconnect);
  return w;
}

void http_exchanges_on_connection(void *all, struct MHD_Connection *c, void **context,
                                  enum MHD_ConnectionNotificationCode what) {
  watch *w = *context;
  if (what == MHD_CONNECTION_NOTIFY_STARTED) {
    *context = watch_new(all, MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd);
  } else if (w) {
    w->closed = true;
    uv_close((uv_handle_t *)&w->poll, on_watch_closed);
  }
}

/* ---- the request ---- */

static http_exchange *exchange_new(http_exchanges *all, struct MHD_Connection *c, const char *url,
                                   const char *method) {
  http_exchange *x = calloc(1, sizeof *x);
  if (!x) return NULL;
  x->all = all;
  x->connection = c;
  x->watch = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
  if (x->watch) x->watch->exchange = x;
  x->method = strdup(method);
  x->path = strdup(url);
  x->next = all->first;
  x->link = &all->first;
  if (x->next) x->next->link = &x->next;
  all->first = x;
  if (x->method && x->path) return x;
  exchange_free(x);
  return NULL;
}

/* Room for `more` bytes and a NUL. What is refused is read to its end and dropped. */
static bool body_room(http_exchange *x, size_t more) {
  http_exchanges *all = x->all;
  size_t wanted = x->body_size + more + 1;
  if (x->problem) return false;
  if (wanted <= x->body_capacity) return true;
  if (wanted > HTTP_BODY_MAX) {
    x->problem = MHD_HTTP_CONTENT_TOO_LARGE;
    return false;
  }
  size_t capacity = wanted < HTTP_BODY_MAX / 2 ? 2 * wanted : HTTP_BODY_MAX;
  char *p =
      all->body_bytes - x->body_capacity + capacity <= HTTP_BODIES_MAX ? realloc(x->body, capacity) : NULL;
  if (!p) {
    x->problem = MHD_HTTP_SERVICE_UNAVAILABLE;
    return false;
  }
  all->body_bytes += capacity - x->body_capacity;
  x->body = p;
  x->body_capacity = capacity;
  return true;
}

static void take_body(http_exchange *x, const char *data, size_t size) {
  if (!body_room(x, size)) return;
  memcpy(x->body + x->body_size, data, size);
  x->body_size += size;
  x->body[x->body_size] = 0;
}

/* A body that is somewhat too large is read and dropped, so that the client comes to read the answer; one
 * that is far too large is answered before it comes, and the connection closes. */
static bool announces_far_too_much(http_exchange *x) {
  const char *length = http_header(x, "Content-Length");
  if (!length || strtoull(length, NULL, 10) <= HTTP_BODIES_MAX) return false;
  x->problem = MHD_HTTP_CONTENT_TOO_LARGE;
  return true;
}

static void give_to_owner(http_exchange *x) {
  x->state = OWNED;
  x->all->on_request(x->all->owner, x);
}

static enum MHD_Result queue_response(http_exchange *x) {
  struct MHD_Response *r = x->response;
  x->response = NULL;
  enum MHD_Result rc = MHD_queue_response(x->connection, x->status, r);
  MHD_destroy_response(r);
  return rc;
}

/* Called for the headers, then for each part of the body, then once more, and again when it is woken. */
enum MHD_Result http_exchanges_on_request(void *all, struct MHD_Connection *c, const char *url,
                                          const char *method, const char *version, const char *data,
                                          size_t *size, void **exchange) {
  http_exchange *x = *exchange;
  (void)version;
  if (!x) {
    *exchange = x = exchange_new(all, c, url, method);
    if (!x) return MHD_NO;
    if (!announces_far_too_much(x)) return MHD_YES;
  } else if (*size) {
    take_body(x, data, *size);
    *size = 0;
    return MHD_YES;
  }
  if (x->broken) return MHD_NO;
  if (x->state == RECEIVING) give_to_owner(x);
  if (x->broken) return MHD_NO;
  if (x->response) return queue_response(x);
  suspend(x);
  return MHD_YES;
}

unsigned http_problem(const http_exchange *x) {
  return x->problem;
}

const char *http_method(const http_exchange *x) {
  return x->method;
}

const char *http_path(const http_exchange *x) {
  return x->path;
}

const char *http_header(const http_exchange *x, const char *name) {
  return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

const char *http_query(const http_exchange *x, const char *name) {
  return MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, name);
}

const char *http_body(const http_exchange *x, size_t *size) {
  *size = x->body_size;
  return x->body ? x->body : "";
}

void http_set_user(http_exchange *x, void *user) {
  x->user = user;
}

void *http_user(const http_exchange *x) {
  return x->user;
}

/* ---- the response ---- */

void http_add_header(http_exchange *x, const char *name, const char *value) {
  if (x->header_count == HTTP_HEADERS_MAX) return;
  char *copy = strdup(value);
  if (copy) x->headers[x->header_count++] = (added_header){name, copy};
}

const char *http_added_header(const http_exchange *x, const char *name) {
  for (int i = 0; i < x->header_count; i++)
    if (strcmp(x->headers[i].name, name) == 0) return x->headers[i].value;
  return NULL;
}

static bool give_response(http_exchange *x, struct MHD_Response *r, unsigned status, const char *type) {
  if (!r) {
    break_it(x);
    return false;
  }
  MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
  for (int i = 0; i < x->header_count; i++)
    MHD_add_response_header(r, x->headers[i].name, x->headers[i].value);
  x->response = r;
  x->status = status;
  return true;
}

void http_reply(http_exchange *x, unsigned status, const char *type, const char *data, size_t size) {
  x->user = NULL;
  struct MHD_Response *r = MHD_create_response_from_buffer(size, (void *)data, MHD_RESPMEM_MUST_COPY);
  if (!give_response(x, r, status, type)) return;
  x->state = DONE;
  wake(x);
}

/* Gives what there is; when there is nothing, the connection sleeps until the owner writes. */
static ssize_t on_read(void *context, uint64_t position, char *buffer, size_t size) {
  http_exchange *x = context;
  size_t left = x->out_size - x->out_sent;
  (void)position;
  if (x->broken) return MHD_CONTENT_READER_END_WITH_ERROR;
  if (left == 0 && x->state == DONE) return MHD_CONTENT_READER_END_OF_STREAM;
  if (left == 0) {
    suspend(x);
    return 0;
  }
  if (size > left) size = left;
  memcpy(buffer, x->out + x->out_sent, size);
  x->out_sent += size;
  if (x->out_sent == x->out_size) x->out_sent = x->out_size = 0;
  return (ssize_t)size;
}

int http_stream_begin(http_exchange *x, unsigned status, const char *type) {
  struct MHD_Response *r =
      MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, on_read, x, NULL);
  if (!r) return ERR_NOMEM;
  give_response(x, r, status, type);
  x->state = STREAMED;
  wake(x);
  return ERR_OK;
}

/* What is taken makes room when it is half of all. */
static void drop_taken(http_exchange *x) {
  if (x->out_sent <= x->out_size / 2) return;
  memmove(x->out, x->out + x->out_sent, x->out_size - x->out_sent);
  x->out_size -= x->out_sent;
  x->out_sent = 0;
}

int http_stream_write(http_exchange *x, const char *data, size_t size) {
  drop_taken(x);
  if (x->out_size + size > x->out_capacity) {
    size_t capacity = 2 * (x->out_size + size);
    char *p = realloc(x->out, capacity);
    if (!p) return ERR_NOMEM;
    x->out = p;
    x->out_capacity = capacity;
  }
  memcpy(x->out + x->out_size, data, size);
  x->out_size += size;
  wake(x);
  return ERR_OK;
}

size_t http_stream_unsent(const http_exchange *x) {
  return x->out_size - x->out_sent;
}

void http_stream_end(http_exchange *x) {
  x->user = NULL;
  x->state = DONE;
  wake(x);
}

void http_abort(http_exchange *x) {
  x->user = NULL;
  shutdown(descriptor_of(x), SHUT_RDWR);
  break_it(x);
}
