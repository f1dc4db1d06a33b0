/* tandem serve: the OpenAI API. It starts its workers, or waits for those that others start. */
#include "common/base/supervisor.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/default_head.h"
#include "orchestrator/service/api/api.h"
#include <stdio.h>
#include <string.h>

typedef struct serve {
  flags flags;
  text_model model;
  logger log;
  service *service;
  api_keys keys, admin_keys;
  http_tls tls;
  api *api;
  bool ready, finished;
} serve;

/* A literal address of IPv6 stands in brackets in a URL. */
static void tell_address(const serve *s) {
  const char *host = s->flags.given.host, *open = strchr(host, ':') ? "[" : "", *close = *open ? "]" : "";
  log_line(&s->log, LOG_INFO, "listening at http%s://%s%s%s:%u: the OpenAI API is below /v1",
           s->flags.given.key_file ? "s" : "", open, host, close, api_port(s->api));
}

static void on_news(void *owner) {
  serve *s = owner;
  if (!s->api) return;
  if (service_signal(s->service)) {
    api_stop(s->api, "the server is shutting down");
    supervisor_tell("STOPPING=1");
  }
  api_update(s->api);
  if (!s->ready && service_ready(s->service)) {
    s->ready = true;
    log_line(&s->log, LOG_INFO, "ready");
    supervisor_tell("READY=1");
  }
  bool over = service_signal(s->service) || service_trouble(s->service, NULL);
  if (s->finished || !over || !api_is_idle(s->api)) return;
  s->finished = true;
  service_finish(s->service);
}

/* What the API takes where a request is silent: the whole context, and OpenAI's temperature. */
static int prepare(serve *s) {
  err e = {0};
  request *defaults = &s->flags.request;
  int rc = text_model_open(&s->model, s->flags.given.model, &e);
  if (rc == ERR_OK) default_head_use(&s->flags, s->model.file);
  int code = rc ? STATUS_OK : command_context(&s->model, defaults->context, &defaults->context);
  if (code) return code;
  if (rc == ERR_OK) rc = text_model_load(&s->model, s->flags.given.template, &e);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_FILE, "%s", e.text);
  if (defaults->max_tokens == 0) defaults->max_tokens = defaults->context;
  return STATUS_OK;
}

static const char *name_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash && slash[1] ? slash + 1 : path;
}

static int read_keys(serve *s) {
  const flags *f = &s->flags;
  err e = {0};
  int rc = f->given.api_keys ? api_keys_add(&s->keys, f->given.api_keys, &e) : ERR_OK;
  if (rc == ERR_OK && f->given.admin_key) rc = api_keys_add(&s->admin_keys, f->given.admin_key, &e);
  if (rc == ERR_OK && f->given.api_key_file) rc = api_keys_read(&s->keys, f->given.api_key_file, &e);
  return rc ? command_error(STATUS_USAGE, "%s", e.text) : STATUS_OK;
}

static int read_tls(serve *s) {
  const flags *f = &s->flags;
  err e = {0};
  int rc =
      f->given.key_file ? http_tls_read(&s->tls, f->given.certificate_file, f->given.key_file, &e) : ERR_OK;
  return rc ? command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_USAGE, "%s", e.text) : STATUS_OK;
}

static int report(const serve *s) {
  err trouble = {0};
  if (service_trouble(s->service, &trouble)) return command_trouble(s->service, &trouble);
  return command_signal_status(service_signal(s->service));
}

static int serve_all(serve *s) {
  err e = {0};
  const flags *f = &s->flags;
  service_options o = command_service_options(f, f->request.context, &s->log);
  o.on_news = on_news;
  o.owner = s;
  if (service_open(&s->service, &o, &e)) return command_error(STATUS_FAILED, "%s", e.text);
  const api_options served = {.service = s->service,
                              .model = &s->model,
                              .defaults = &f->request,
                              .model_name = name_of(f->given.model),
                              .model_path = f->given.model,
                              .waiting_max = f->given.waiting_max,
                              .sessions = f->given.sessions,
                              .keys = &s->keys,
                              .admin_keys = &s->admin_keys,
                              .cors_origin = f->given.cors_origin,
                              .host = f->given.host,
                              .port = (uint16_t)f->given.port,
                              .tls = f->given.key_file ? &s->tls : NULL,
                              .log = &s->log};
  int rc = api_open(&s->api, &served, &e);
  if (rc) return command_error(rc == ERR_ARG ? STATUS_USAGE : STATUS_IO, "%s", e.text);
  tell_address(s);
  if (f->given.listen) supervisor_tell("READY=1"); /* its workers may be services that wait for it */
  rc = service_serve(s->service, &s->model, &e);
  if (rc) return command_error(command_serve_status(rc), "%s", e.text);
  service_run(s->service);
  return report(s);
}

int command_serve(int argc, char **argv) {
  serve s = {0};
  flags_parse(&s.flags, COMMAND_SERVE, argc, argv);
  s.log = (logger){"tandem", s.flags.given.verbose ? LOG_DEBUG : LOG_INFO};
  int code = read_keys(&s);
  if (code == STATUS_OK) code = read_tls(&s);
  if (code == STATUS_OK) code = prepare(&s);
  if (code == STATUS_OK) code = serve_all(&s);
  api_close(s.api);
  service_close(s.service);
  text_model_close(&s.model);
  api_keys_fini(&s.keys);
  api_keys_fini(&s.admin_keys);
  http_tls_fini(&s.tls);
  flags_fini(&s.flags);
  return code;
}
