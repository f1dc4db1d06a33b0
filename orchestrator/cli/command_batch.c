/* tandem batch: a file of prompts, several at a time; the results come in the order of the prompts. */
#include "common/base/output_file.h"
#include "orchestrator/cli/async_output.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/default_head.h"
#include "orchestrator/cli/input_file.h"
#include "orchestrator/service/request_json.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define IN_BYTES_MAX (1u << 30)
/* Bytes of results that cannot be written yet, because OUT is slow or an earlier line takes longer: meanwhile
 * no more lines begin */
#define BACKLOG_MAX (16u << 20)

typedef struct item { /* one line of IN */
  const char *line;
  size_t size;
  long number; /* of the line, from 1 */
  bool over;
  char *result; /* its line of OUT; NULL when it could not be made */
} item;

typedef struct batch {
  flags flags;
  text_model model;
  logger log;
  service *service;
  request_queue requests;
  async_output out;
  int out_fd;
  item *items;
  size_t count;   /* of items */
  size_t next;    /* the first one that is neither begun nor refused */
  size_t written; /* results that `out` has */
  size_t held;    /* bytes of results that wait for an earlier line's */
  bool finished;
} batch;

/* ---- while it runs ---- */

static void on_result(void *owner, size_t tag, char *line) {
  batch *b = owner;
  b->items[tag].over = true;
  b->items[tag].result = line;
  if (line) b->held += strlen(line);
}

/* Results leave in the order of the lines, so one that takes longer holds back the later ones. */
static void write_results(batch *b) {
  while (b->written < b->count && b->items[b->written].over) {
    item *it = &b->items[b->written++];
    size_t size = it->result ? strlen(it->result) : 0;
    b->held -= size;
    if (async_output_add(&b->out, it->result, size)) b->requests.out_of_memory = true;
    free(it->result);
    it->result = NULL;
  }
}

static void begin_next(batch *b) {
  size_t tag = b->next++;
  const item *it = &b->items[tag];
  request_queue_begin(&b->requests, it->line, it->size, it->number, tag);
}

static void finish(batch *b) {
  if (b->finished || b->requests.running_count > 0 || b->next < b->count || !async_output_idle(&b->out))
    return;
  b->finished = true;
  service_finish(b->service);
}

/* Lines that have not begun are left out of OUT after a signal; after a failure each has an error there. */
static void give_up(batch *b, const err *trouble) {
  for (; trouble && b->next < b->count; b->next++) {
    const item *it = &b->items[b->next];
    request_queue_refuse(&b->requests, it->line, it->size, it->number, b->next, trouble);
  }
  b->count = b->next;
}

static bool may_begin(const batch *b) {
  int32_t most = service_capacity(b->service);
  if (most > b->flags.given.sessions) most = b->flags.given.sessions;
  return b->requests.running_count < most && b->next < b->count && b->held + b->out.queued_size < BACKLOG_MAX;
}

static void on_news(void *owner) {
  batch *b = owner;
  err trouble = {0};
  bool bad = service_trouble(b->service, &trouble) != ERR_OK,
       stop = service_signal(b->service) || b->out.failed;
  if (bad)
    request_queue_fail(&b->requests, &trouble);
  else if (stop)
    request_queue_cancel(&b->requests);
  request_queue_update(&b->requests);
  if (bad || stop)
    give_up(b, bad ? &trouble : NULL);
  else if (service_ready(b->service))
    while (may_begin(b)) begin_next(b);
  write_results(b);
  finish(b);
}

/* ---- before and after ---- */

static int split_lines(batch *b, const input_file *in, err *e) {
  size_t capacity = 0;
  long number = 0;
  for (size_t at = 0; at < in->size;) {
    const char *line = in->data + at, *end = memchr(line, '\n', in->size - at);
    size_t size = end ? (size_t)(end - line) : in->size - at;
    at += size + 1;
    number++;
    if (request_json_is_blank(line, size)) continue;
    if (b->count == capacity) {
      capacity = capacity ? 2 * capacity : 64;
      item *p = realloc(b->items, capacity * sizeof *p);
      if (!p) return err_set(e, ERR_NOMEM, "out of memory for %ld lines", number);
      b->items = p;
    }
    b->items[b->count++] = (item){.line = line, .size = size, .number = number};
  }
  return ERR_OK;
}

static int prepare(batch *b, input_file *in) {
  err e = {0};
  const char *from = b->flags.given.arguments[0], *to = b->flags.given.arguments[1];
  int rc = text_model_open(&b->model, b->flags.given.model, &e);
  if (rc == ERR_OK) default_head_use(&b->flags, b->model.file);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_FILE, "%s", e.text);
  request *defaults = &b->flags.request;
  int code = command_context(&b->model, defaults->context, &defaults->context);
  if (code) return code;
  rc = input_file_read(in, from, IN_BYTES_MAX, &e);
  if (rc == ERR_OK) rc = split_lines(b, in, &e);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_IO, "%s", e.text);
  if (b->count == 0) return command_error(STATUS_INPUT, "%s has no lines", from);
  bool to_stdout = strcmp(to, "-") == 0;
  b->out_fd = to_stdout ? STDOUT_FILENO : output_file_open_fd(to, &e);
  if (to_stdout) output_file_check_fd(STDOUT_FILENO, "stdout", &e);
  return e.code ? command_error(e.code == ERR_ARG ? STATUS_USAGE : STATUS_IO, "%s", e.text) : STATUS_OK;
}

static int report(const batch *b) {
  int code = command_end_queue(&b->requests, &b->flags);
  if (!b->out.failed) return code;
  return command_error(STATUS_IO, "cannot write the answers: %s", uv_strerror(b->out.failed));
}

static int complete_all(batch *b) {
  err e = {0};
  service_options o = command_service_options(&b->flags, b->flags.request.context, &b->log);
  o.on_news = on_news;
  o.owner = b;
  if (service_open(&b->service, &o, &e)) return command_error(STATUS_WORKER, "%s", e.text);
  async_output_init(&b->out, service_loop(b->service), b->out_fd, on_news, b);
  b->requests = (request_queue){.defaults = &b->flags.request,
                                .model = &b->model,
                                .log = &b->log,
                                .service = b->service,
                                .on_result = on_result,
                                .accepted_wanted = b->flags.given.listen != NULL,
                                .owner = b};
  int rc = text_model_load(&b->model, b->flags.given.template, &e); /* while the target loads the weights */
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_FILE, "%s", e.text);
  rc = service_serve(b->service, &b->model, &e);
  if (rc) return command_error(command_serve_status(rc), "%s", e.text);
  service_run(b->service);
  return report(b);
}

int command_batch(int argc, char **argv) {
  batch b = {.out_fd = -1};
  input_file in = {0};
  flags_parse(&b.flags, COMMAND_BATCH, argc, argv);
  b.log = (logger){"tandem", b.flags.given.verbose ? LOG_INFO : LOG_WARNING};
  int code = prepare(&b, &in);
  if (code == STATUS_OK) code = complete_all(&b);
  service_close(b.service);
  async_output_fini(&b.out);
  if (b.out_fd > STDOUT_FILENO && close(b.out_fd) != 0 && code == STATUS_OK)
    code = command_error(STATUS_IO, "cannot write %s: %s", b.flags.given.arguments[1], strerror(errno));
  free(b.items);
  text_model_close(&b.model);
  input_file_fini(&in);
  flags_fini(&b.flags);
  return code;
}
