#include "orchestrator/service/api/api.h"

#include "orchestrator/service/api/call_turns.h"
#include "orchestrator/service/api/request_id.h"
#include "orchestrator/service/api/server_json.h"
#include "orchestrator/service/api/tokens_json.h"
#include "orchestrator/service/api/workers_json.h"
#include "openapi.h"
#include "version.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct api {
  api_options options;
  http_server *server;
  call *calls, **last; /* in the order in which they came */
  call_turns turns;
  metrics metrics;
  err stopped; /* why no more calls are taken */
};

/* ---- calls ---- */

static int32_t running_of(const api *a) {
  int32_t running = 0;
  for (const call *c = a->calls; c; c = c->next) running += call_running(c);
  return running;
}

/* `key`: of one API key; -1: of all. */
static int32_t waiting_of(const api *a, int32_t key) {
  int32_t waiting = 0;
  for (const call *c = a->calls; c; c = c->next) waiting += !call_has_begun(c) && (key < 0 || c->key == key);
  return waiting;
}

static int32_t slot_count(const api *a) {
  int32_t most = service_capacity(a->options.service);
  return most < a->options.sessions ? most : a->options.sessions;
}

static int32_t room_of(const api *a) {
  return service_ready(a->options.service) ? slot_count(a) - running_of(a) : 0;
}

static void begin_those_with_room(api *a) {
  call *c;
  for (int32_t room = room_of(a); room > 0 && (c = call_turns_next(&a->turns, a->calls)); room--)
    call_begin_next(c, a->options.service);
}

static void forget_those_that_are_over(api *a) {
  call **at = &a->calls;
  while (*at) {
    call *c = *at;
    if (call_is_over(c)) {
      *at = c->next;
      call_free(c);
    } else {
      at = &c->next;
    }
  }
  a->last = at;
}

void api_update(api *a) {
  err trouble = {0};
  if (service_trouble(a->options.service, &trouble)) api_stop(a, trouble.text);
  for (call *c = a->calls; c; c = c->next) call_update(c, a->options.service);
  if (!a->stopped.code) begin_those_with_room(a);
  forget_those_that_are_over(a);
}

void api_stop(api *a, const char *why) {
  if (a->stopped.code) return;
  err_set(&a->stopped, ERR_GONE, "%s", why);
  for (call *c = a->calls; c; c = c->next) call_fail(c, a->options.service, &a->stopped);
}

bool api_is_idle(const api *a) {
  return !a->calls;
}

/* ---- handlers ---- */

static void refuse(http_exchange *x, unsigned status, const char *text) {
  call_reply(x, status, openai_json_error(status, 0, text, NULL));
}

/* NULL: refused. */
static json_t *body_of(http_exchange *x) {
  err e = {0};
  json_error_t why;
  size_t size;
  const char *text = http_body(x, &size);
  json_t *body = json_loadb(text, size, JSON_ALLOW_NUL, &why);
  if (body) return body;
  err_set(&e, ERR_FORMAT, "the body is not JSON: %s (line %d, column %d)", why.text, why.line, why.column);
  call_refuse(x, &e, NULL);
  return NULL;
}

/* With which calls this one shares its turns: those of the same key, or of administrators. */
static int32_t key_of(const api *a, const http_exchange *x) {
  int32_t key = api_keys_find(a->options.keys, http_header(x, "Authorization"));
  return key < 0 ? API_KEYS_MAX : key;
}

/* A stream that was cut, whose client says what it has. False: refused. */
static bool go_on(call *c, http_exchange *x) {
  const char *last = http_header(x, "Last-Event-ID");
  err e = {0};
  if (!last || !c->options.stream || call_go_on(c, last, &e) == ERR_OK) return true;
  call_free(c);
  call_refuse(x, &e, NULL);
  return false;
}

static void complete(api *a, http_exchange *x, bool chat) {
  call_options options;
  call_error e = {0};
  call *c;
  json_t *body = body_of(x);
  if (!body) return;
  int rc = call_options_read(body, chat, a->options.defaults, a->options.model, &options, &e);
  if (rc == ERR_OK) rc = call_new(&c, &options, a->options.model, a->options.model_name, &a->metrics, &e.why);
  json_decref(body);
  if (rc) {
    e.why.code = rc;
    request_fini(&options.request);
    call_refuse(x, &e.why, e.param);
    return;
  }
  if (!go_on(c, x)) return;
  c->key = key_of(a, x);
  call_attach(c, x, a->options.log);
  *a->last = c;
  a->last = &c->next;
  begin_those_with_room(a);
}

static void post_completion(api *a, http_exchange *x, bool chat) {
  err full = {0};
  if (a->stopped.code) {
    call_refuse(x, &a->stopped, NULL);
  } else if (room_of(a) <= 0 && waiting_of(a, key_of(a, x)) >= a->options.waiting_max) {
    err_set(&full, ERR_FULL, "%d of your requests wait already: try again later", a->options.waiting_max);
    call_refuse(x, &full, NULL);
  } else {
    complete(a, x, chat);
  }
}

static void post_chat(api *a, http_exchange *x) {
  post_completion(a, x, true);
}

static void post_text(api *a, http_exchange *x) {
  post_completion(a, x, false);
}

static json_t *model_of(const api *a) {
  return json_pack("{s:s, s:s, s:i, s:s, s:i}", "id", a->options.model_name, "object", "model", "created", 0,
                   "owned_by", "tandem", "max_model_len", a->options.defaults->context);
}

static void get_models(api *a, http_exchange *x) {
  call_reply(x, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_of(a)));
}

static void get_model(api *a, http_exchange *x) {
  if (strcmp(http_path(x) + strlen("/v1/models/"), a->options.model_name) == 0)
    call_reply(x, 200, model_of(a));
  else
    refuse(x, 404, "there is no such model: GET /v1/models tells the one that there is");
}

/* 503 until a target is ready: what load balancers and scripts wait for. */
static void get_health(api *a, http_exchange *x) {
  bool ok = !a->stopped.code && service_ready(a->options.service);
  call_reply(x, ok ? 200 : 503, json_pack("{s:s}", "status", ok ? "ok" : "loading model"));
}

static void get_version(api *a, http_exchange *x) {
  (void)a;
  call_reply(x, 200, json_pack("{s:s, s:s}", "version", TANDEM_VERSION, "commit", TANDEM_COMMIT));
}

static void reply_tokens(http_exchange *x, int rc, json_t *out, call_error *e) {
  e->why.code = rc;
  if (rc)
    call_refuse(x, &e->why, e->param);
  else
    call_reply(x, 200, out);
}

static void post_tokenize(api *a, http_exchange *x) {
  call_error e = {0};
  json_t *body = body_of(x), *out;
  if (!body) return;
  int rc = tokens_json_tokenize(body, a->options.model, a->options.defaults->context, &out, &e);
  json_decref(body);
  reply_tokens(x, rc, out, &e);
}

static void post_detokenize(api *a, http_exchange *x) {
  call_error e = {0};
  json_t *body = body_of(x), *out;
  if (!body) return;
  int rc = tokens_json_detokenize(body, a->options.model, &out, &e);
  json_decref(body);
  reply_tokens(x, rc, out, &e);
}

static server_about about(const api *a) {
  return (server_about){a->options.model, a->options.model_path, a->options.defaults, slot_count(a)};
}

static void get_props(api *a, http_exchange *x) {
  const server_about all = about(a);
  call_reply(x, 200, server_json_props(&all));
}

static void get_slots(api *a, http_exchange *x) {
  const server_about all = about(a);
  call_reply(x, 200, server_json_slots(&all, a->calls));
}

static void get_metrics(api *a, http_exchange *x) {
  const transport_counters wire = service_wire(a->options.service);
  const metrics_now now = {.model_name = a->options.model_name,
                           .running = running_of(a),
                           .waiting = waiting_of(a, -1),
                           .slots = slot_count(a),
                           .ready = service_ready(a->options.service),
                           .wire_sent = wire.sent_bytes,
                           .wire_received = wire.received_bytes};
  char *text = metrics_text(&a->metrics, &now);
  if (text)
    http_reply(x, 200, METRICS_CONTENT_TYPE, text, strlen(text));
  else
    http_abort(x);
  free(text);
}

static void get_workers(api *a, http_exchange *x) {
  call_reply(x, 200, workers_json_list(a->options.service));
}

/* Where clients have keys, a worker is not theirs to take from the others. */
static bool may_operate(const api *a, http_exchange *x) {
  const api_options *o = &a->options;
  if (!o->admin_keys->count && !o->keys->count) return true;
  if (o->admin_keys->count && api_keys_find(o->admin_keys, http_header(x, "Authorization")) >= 0) return true;
  refuse(x, 403,
         o->admin_keys->count
             ? "a client's key does not drain workers: send the one of --admin-key"
             : "a client's key does not drain workers: start the server with --admin-key KEY and send that");
  return false;
}

static void post_worker(api *a, http_exchange *x) {
  const char *id = http_path(x) + strlen("/v1/workers/");
  err e = {0};
  json_t *out, *body = may_operate(a, x) ? body_of(x) : NULL;
  if (!body) return;
  int rc = workers_json_change(a->options.service, id, body, &out, &e);
  json_decref(body);
  if (rc == ERR_GONE)
    refuse(x, 404, e.text);
  else if (rc)
    call_refuse(x, &e, "drained");
  else
    call_reply(x, 200, out);
}

static void get_openapi(api *a, http_exchange *x) {
  (void)a;
  http_reply(x, 200, "application/json", (const char *)openapi, sizeof openapi);
}

/* ---- routes ---- */

typedef struct route {
  const char *method, *path;
  void (*handle)(api *a, http_exchange *x);
} route;

static const route routes[] = {
    {"POST", "/v1/chat/completions", post_chat},
    {"POST", "/v1/completions", post_text},
    {"GET", "/v1/models", get_models},
    {"GET", "/v1/models/{model}", get_model},
    {"GET", "/health", get_health},
    {"GET", "/version", get_version},
    {"POST", "/tokenize", post_tokenize},
    {"POST", "/detokenize", post_detokenize},
    {"GET", "/props", get_props},
    {"GET", "/slots", get_slots},
    {"GET", "/metrics", get_metrics},
    {"GET", "/v1/workers", get_workers},
    {"POST", "/v1/workers/{worker}", post_worker},
    {"GET", "/openapi.json", get_openapi},
};

/* A path may end with a parameter in braces, which is anything that is not empty. */
static bool is_at(const route *r, const char *path) {
  size_t fixed = strcspn(r->path, "{");
  return r->path[fixed] ? strncmp(r->path, path, fixed) == 0 && path[fixed] : strcmp(r->path, path) == 0;
}

static void refuse_method(http_exchange *x, const char *wanted) {
  char text[80];
  snprintf(text, sizeof text, "%s takes %s", http_path(x), wanted);
  http_add_header(x, "Allow", wanted);
  refuse(x, 405, text);
}

/* Web pages of another origin may ask if their browser is told so: of each response, and before a request. */
static void allow_pages(const api *a, http_exchange *x) {
  if (!a->options.cors_origin) return;
  http_add_header(x, "Access-Control-Allow-Origin", a->options.cors_origin);
  http_add_header(x, "Access-Control-Expose-Headers", "X-Request-Id");
}

static void reply_to_options(const api *a, http_exchange *x) {
  if (a->options.cors_origin) {
    http_add_header(x, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    http_add_header(x, "Access-Control-Allow-Headers",
                    "Authorization, Content-Type, X-Request-Id, Last-Event-ID");
    http_add_header(x, "Access-Control-Max-Age", "3600");
  }
  http_reply(x, 204, "text/plain", "", 0);
}

/* Whoever watches the server need have no key. */
static bool may_ask(const api *a, http_exchange *x) {
  const char *given = http_header(x, "Authorization");
  const api_keys *admin = a->options.admin_keys;
  return strcmp(http_path(x), "/health") == 0 || api_keys_find(a->options.keys, given) >= 0 ||
         (admin->count && api_keys_find(admin, given) >= 0);
}

static void refuse_stranger(http_exchange *x) {
  http_add_header(x, "WWW-Authenticate", "Bearer");
  refuse(x, 401, "a wrong API key, or none: send one of this server's as 'Authorization: Bearer KEY'");
}

static void on_request(void *owner, http_exchange *x) {
  api *a = owner;
  request_id_give(x);
  allow_pages(a, x);
  if (strcmp(http_method(x), "OPTIONS") == 0) {
    reply_to_options(a, x);
    return;
  }
  if (!may_ask(a, x)) {
    refuse_stranger(x);
    return;
  }
  const char *method = strcmp(http_method(x), "HEAD") == 0 ? "GET" : http_method(x);
  const char *wanted = NULL;
  if (http_problem(x) == 413) {
    refuse(x, 413, "the body is too large: 16 MiB are the most");
    return;
  }
  if (http_problem(x)) {
    refuse(x, http_problem(x), "too many large requests at a time: try again later");
    return;
  }
  for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
    if (!is_at(&routes[i], http_path(x))) continue;
    if (strcmp(routes[i].method, method) == 0) {
      routes[i].handle(a, x);
      return;
    }
    wanted = routes[i].method;
  }
  if (wanted)
    refuse_method(x, wanted);
  else
    refuse(x, 404, "there is nothing at this path");
}

static void on_gone(void *owner, http_exchange *x) {
  api *a = owner;
  call_drop(http_user(x), a->options.service);
}

/* ---- open and close ---- */

int api_open(api **out, const api_options *o, err *e) {
  api *a = calloc(1, sizeof *a);
  if (!a) return err_set(e, ERR_NOMEM, "out of memory for the API");
  const http_server_options server = {.host = o->host,
                                      .port = o->port,
                                      .tls = o->tls,
                                      .on_request = on_request,
                                      .on_gone = on_gone,
                                      .owner = a,
                                      .log = o->log};
  a->options = *o;
  a->last = &a->calls;
  int rc = http_server_open(&a->server, service_loop(o->service), &server, e);
  if (rc)
    free(a);
  else
    *out = a;
  return rc;
}

uint16_t api_port(const api *a) {
  return http_server_port(a->server);
}

void api_close(api *a) {
  if (!a) return;
  http_server_close(a->server);
  while (a->calls) {
    call *c = a->calls;
    a->calls = c->next;
    call_free(c);
  }
  free(a);
}
