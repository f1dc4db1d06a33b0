/* tandem serve-workers: an orchestrator for workers that others start. Requests come in as lines, results go
 * out as lines when they are there. */
#include "common/base/output_file.h"
#include "orchestrator/cli/async_output.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/default_head.h"
#include "orchestrator/cli/line_reader.h"
#include "orchestrator/service/request_json.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BACKLOG_MAX                                                                                          \
  (16u << 20) /* bytes of results that nobody has read yet: meanwhile no more requests begin */

typedef struct serve {
  flags flags;
  text_model model;
  logger log;
  service *service;
  request_queue requests;
  line_reader in;
  async_output out;
  int in_fd;
  long number;             /* of the last line */
  bool stopping, finished; /* stopping: no more requests begin */
} serve;

static void on_result(void *owner, size_t tag, char *line) {
  serve *s = owner;
  (void)tag;
  if (line && async_output_add(&s->out, line, strlen(line))) s->requests.out_of_memory = true;
  free(line);
}

static void finish(serve *s) {
  bool ended = s->stopping || line_reader_ended(&s->in);
  if (s->finished || !ended || s->requests.running_count > 0 || !async_output_idle(&s->out)) return;
  s->finished = true;
  service_finish(s->service);
}

static bool has_room(const serve *s) {
  int32_t most = service_capacity(s->service);
  if (most > s->flags.given.sessions) most = s->flags.given.sessions;
  return s->requests.running_count < most && s->out.queued_size < BACKLOG_MAX;
}

static void begin(serve *s) {
  const char *line;
  size_t size;
  while (has_room(s) && line_reader_next(&s->in, &line, &size)) {
    s->number++;
    if (!request_json_is_blank(line, size)) request_queue_begin(&s->requests, line, size, s->number, 0);
  }
}

static void on_news(void *owner) {
  serve *s = owner;
  err trouble = {0};
  bool bad = service_trouble(s->service, &trouble) != ERR_OK,
       stop = service_signal(s->service) || s->out.failed;
  s->stopping |= bad || stop;
  if (s->stopping) line_reader_stop(&s->in);
  if (bad)
    request_queue_fail(&s->requests, &trouble);
  else if (stop)
    request_queue_cancel(&s->requests);
  request_queue_update(&s->requests);
  if (!s->stopping && service_ready(s->service)) begin(s);
  finish(s);
}

static int prepare(serve *s) {
  err e = {0};
  request *defaults = &s->flags.request;
  const char *from = s->flags.given.argument_count ? s->flags.given.arguments[0] : "-";
  int rc = text_model_open(&s->model, s->flags.given.model, &e);
  if (rc == ERR_OK) default_head_use(&s->flags, s->model.file);
  int code = rc ? STATUS_OK : command_context(&s->model, defaults->context, &defaults->context);
  if (code) return code;
  if (rc == ERR_OK) rc = text_model_load(&s->model, s->flags.given.template, &e);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_FILE, "%s", e.text);
  s->in_fd = strcmp(from, "-") == 0 ? STDIN_FILENO : open(from, O_RDONLY | O_CLOEXEC);
  output_file_spare(s->in_fd == STDIN_FILENO ? "/dev/stdin" : from);
  return s->in_fd < 0 ? command_error(STATUS_IO, "cannot read %s: %s", from, strerror(errno)) : STATUS_OK;
}

static int report(const serve *s) {
  err trouble = {0};
  int code = command_end_queue(&s->requests, &s->flags);
  if (service_trouble(s->service, &trouble)) return command_error(STATUS_WORKER, "%s", trouble.text);
  if (s->out.failed)
    return command_error(STATUS_IO, "cannot write the answers: %s", uv_strerror(s->out.failed));
  if (s->in.failed) return command_error(STATUS_IO, "cannot read the requests: %s", strerror(s->in.failed));
  return code;
}

static int serve_all(serve *s) {
  err e = {0};
  service_options o = command_service_options(&s->flags, s->flags.request.context, &s->log);
  o.on_news = on_news;
  o.owner = s;
  if (service_open(&s->service, &o, &e)) return command_error(STATUS_FAILED, "%s", e.text);
  async_output_init(&s->out, service_loop(s->service), STDOUT_FILENO, on_news, s);
  s->requests = (request_queue){.defaults = &s->flags.request,
                                .model = &s->model,
                                .log = &s->log,
                                .service = s->service,
                                .on_result = on_result,
                                .accepted_wanted = s->flags.given.listen != NULL,
                                .owner = s};
  int rc = service_serve(s->service, &s->model, &e);
  if (rc) return command_error(command_serve_status(rc), "%s", e.text);
  line_reader_open(&s->in, service_loop(s->service), s->in_fd, REQUEST_JSON_LINE_MAX, on_news, s);
  service_run(s->service);
  return report(s);
}

int command_serve_workers(int argc, char **argv) {
  serve s = {.in_fd = -1};
  flags_parse(&s.flags, COMMAND_SERVE_WORKERS, argc, argv);
  s.log = (logger){"tandem", LOG_INFO};
  int code = prepare(&s);
  if (code == STATUS_OK) code = serve_all(&s);
  if (s.in.on_more) line_reader_stop(&s.in);
  service_close(s.service);
  async_output_fini(&s.out);
  line_reader_fini(&s.in);
  if (s.in_fd > STDIN_FILENO) close(s.in_fd);
  text_model_close(&s.model);
  flags_fini(&s.flags);
  return code;
}
