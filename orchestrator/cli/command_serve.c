/* tandem serve-workers: an orchestrator for workers that others start. Requests come in as lines, results go
 * out as lines when they are there. */
#include "orchestrator/service/batch.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/lines.h"
#include "orchestrator/cli/output.h"
#include "orchestrator/service/request_queue.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BACKLOG_MAX (16u << 20) /* bytes of results that nobody has read: no more requests meanwhile */

typedef struct serve {
  flags flags;
  text_model model;
  int32_t context;
  logger log;
  service *pair;
  request_queue requests;
  lines in;
  output out;
  int in_fd;
  long number;             /* of the last line */
  bool stopping, finished; /* stopping: what has not begun will not */
} serve;

static void on_result(void *owner, size_t tag, char *line) {
  serve *s = owner;
  (void)tag;
  if (line && output_add(&s->out, line, strlen(line))) s->requests.out_of_memory = true;
  free(line);
}

static void finish(serve *s) {
  bool ended = s->stopping || lines_ended(&s->in);
  if (s->finished || !ended || s->requests.running > 0 || !output_idle(&s->out)) return;
  s->finished = true;
  service_finish(s->pair);
}

static bool has_room(const serve *s) {
  int32_t most = service_capacity(s->pair);
  if (most > s->flags.sessions) most = s->flags.sessions;
  return s->requests.running < most && s->out.queued_size < BACKLOG_MAX;
}

static void begin(serve *s) {
  const char *line;
  size_t size;
  while (has_room(s) && lines_next(&s->in, &line, &size)) {
    s->number++;
    if (!batch_is_blank(line, size)) request_queue_begin(&s->requests, line, size, s->number, 0);
  }
}

static void on_news(void *owner) {
  serve *s = owner;
  err trouble = {0};
  bool bad = service_trouble(s->pair, &trouble) != ERR_OK, stop = service_signal(s->pair) || s->out.failed;
  s->stopping |= bad || stop;
  if (s->stopping) lines_stop(&s->in);
  if (bad)
    request_queue_fail(&s->requests, &trouble);
  else if (stop)
    request_queue_cancel(&s->requests);
  request_queue_look(&s->requests);
  if (!s->stopping && service_ready(s->pair)) begin(s);
  finish(s);
}

static int prepare(serve *s) {
  err e = {0};
  const char *from = s->flags.argument_count ? s->flags.arguments[0] : "-";
  int rc = text_model_open(&s->model, s->flags.model, &e);
  if (rc == ERR_OK && text_model_context(&s->model, s->flags.context, &s->context, &e))
    return command_error(STATUS_USAGE, "%s", e.text);
  if (rc == ERR_OK) rc = text_model_load(&s->model, s->flags.template, &e);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_MODEL, "%s", e.text);
  s->in_fd = strcmp(from, "-") == 0 ? STDIN_FILENO : open(from, O_RDONLY | O_CLOEXEC);
  return s->in_fd < 0 ? command_error(STATUS_IO, "cannot read %s: %s", from, strerror(errno)) : STATUS_OK;
}

static int report(const serve *s) {
  err trouble = {0};
  int code = request_queue_report(&s->requests);
  if (service_trouble(s->pair, &trouble)) return command_error(STATUS_WORKER, "%s", trouble.text);
  if (s->out.failed)
    return command_error(STATUS_IO, "cannot write the answers: %s", uv_strerror(s->out.failed));
  if (s->in.failed) return command_error(STATUS_IO, "cannot read the requests: %s", strerror(s->in.failed));
  return code;
}

static int serve_all(serve *s) {
  err e = {0};
  service_options o = {
      .flags = &s->flags, .context = s->context, .log = &s->log, .on_news = on_news, .owner = s};
  if (service_open(&s->pair, &o, &e)) return command_error(STATUS_FAILED, "%s", e.text);
  output_init(&s->out, service_loop(s->pair), STDOUT_FILENO, on_news, s);
  s->requests = (request_queue){.flags = &s->flags,
                                .model = &s->model,
                                .context = s->context,
                                .log = &s->log,
                                .pair = s->pair,
                                .on_result = on_result,
                                .owner = s};
  int rc = service_serve(s->pair, &s->model, &e);
  if (rc) return command_error(command_serve_status(rc), "%s", e.text);
  lines_open(&s->in, service_loop(s->pair), s->in_fd, BATCH_LINE_MAX, on_news, s);
  service_run(s->pair);
  return report(s);
}

int command_serve(int argc, char **argv) {
  serve s = {.in_fd = -1};
  flags_parse(&s.flags, FLAGS_SERVE, argc, argv);
  s.log = (logger){"tandem", LOG_INFO};
  int code = prepare(&s);
  if (code == STATUS_OK) code = serve_all(&s);
  if (s.in.on_more) lines_stop(&s.in);
  service_close(s.pair);
  output_fini(&s.out);
  lines_fini(&s.in);
  if (s.in_fd > STDIN_FILENO) close(s.in_fd);
  text_model_close(&s.model);
  return code;
}
