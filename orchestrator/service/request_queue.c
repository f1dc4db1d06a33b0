#include "orchestrator/service/request_queue.h"

#include "common/base/clock.h"
#include "orchestrator/service/request_json.h"
#include "orchestrator/service/result_json.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static void give(request_queue *q, size_t tag, json_t *object) {
  char *line = result_json_line(object);
  if (!line) q->out_of_memory = true;
  q->on_result(q->owner, tag, line);
}

static void note_failure(request_queue *q, long line_number, const char *why) {
  q->failed++;
  log_line(q->log, LOG_WARNING, "line %ld: %s", line_number, why);
}

static void give_error(request_queue *q, long line_number, size_t tag, json_t *id, const err *why) {
  note_failure(q, line_number, why->text);
  json_t *shown = id ? json_incref(id) : json_null();
  give(q, tag, result_json_of_error(shown, why->text));
  json_decref(shown);
}

/* --- the end --- */

static void count(request_queue *q, const completion *c) {
  const char *off = completion_off_reason(c);
  q->completed += c->finish != WIRE_FINISH_ERROR;
  q->cancelled += c->finish == WIRE_FINISH_CANCELLED;
  q->tokens += c->count;
  q->rounds += c->stats.rounds;
  q->accepted += c->stats.accepted;
  q->drafted += c->stats.rows;
  if (c->uncounted > 0) {
    int64_t accepted = c->fresh_accepted - (int64_t)c->stats.accepted;
    q->lost += c->uncounted;
    q->lost_accepted += accepted > 0 ? accepted : 0;
  }
  if (off && q->plain++ == 0) snprintf(q->off_reason, sizeof q->off_reason, "%s", off);
}

static void on_end(void *context, const completion *c) {
  request_queue_entry *entry = context;
  request_queue *q = entry->queue;
  if (c->finish == WIRE_FINISH_ERROR) note_failure(q, entry->line_number, c->trouble.text);
  count(q, c);
  give(q, entry->tag, result_json_of(c, entry->id));
}

static void entry_free(request_queue_entry *entry) {
  completion_fini(&entry->completion);
  json_decref(entry->id);
  free(entry);
}

static void forget_those_that_are_over(request_queue *q) {
  int32_t left = 0;
  for (int32_t i = 0; i < q->running_count; i++)
    if (completion_is_over(&q->running[i]->completion))
      entry_free(q->running[i]);
    else
      q->running[left++] = q->running[i];
  if (left == 0 && q->running_count > 0) q->busy_us += clock_us() - q->busy_from;
  q->running_count = left;
}

void request_queue_update(request_queue *q) {
  for (int32_t i = 0; i < q->running_count; i++) completion_update(&q->running[i]->completion, q->service);
  forget_those_that_are_over(q);
}

void request_queue_fail(request_queue *q, const err *why) {
  for (int32_t i = 0; i < q->running_count; i++) {
    completion *c = &q->running[i]->completion;
    completion_fail(c, q->service, why);
    completion_update(c, q->service);
  }
  forget_those_that_are_over(q);
}

double request_queue_speed(const request_queue *q) {
  return completion_speed(q->tokens, q->busy_us);
}

void request_queue_cancel(request_queue *q) {
  for (int32_t i = 0; i < q->running_count; i++) completion_cancel(&q->running[i]->completion, q->service);
}

/* --- the beginning --- */

static int begin(request_queue *q, request_queue_entry *entry, const char *line, size_t size, err *e) {
  request r;
  completion *c = &entry->completion;
  int rc = request_json_read(line, size, q->defaults, q->model->config.vocab, &r, &entry->id, e);
  if (!entry->id) entry->id = json_integer(entry->line_number);
  if (rc == ERR_OK) rc = completion_prepare(c, &r, e);
  q->dropped_bytes += c->prompt.dropped_bytes;
  if (rc == ERR_OK) rc = completion_begin(c, q->service, &r, e);
  request_fini(&r);
  return rc;
}

void request_queue_begin(request_queue *q, const char *line, size_t size, long line_number, size_t tag) {
  err e = {0};
  assert(q->running_count < REQUEST_QUEUE_MAX);
  request_queue_entry *entry = calloc(1, sizeof *entry);
  if (!entry) {
    err_set(&e, ERR_NOMEM, "out of memory");
    give_error(q, line_number, tag, NULL, &e);
    return;
  }
  const completion_sink sink = {.on_end = on_end, .context = entry};
  entry->queue = q;
  entry->line_number = line_number;
  entry->tag = tag;
  completion_init(&entry->completion, q->model, &sink);
  entry->completion.accepted_wanted = q->accepted_wanted;
  if (begin(q, entry, line, size, &e) == ERR_OK) {
    if (q->running_count == 0) q->busy_from = clock_us();
    q->running[q->running_count++] = entry;
    return;
  }
  give_error(q, line_number, tag, entry->id, &e);
  entry_free(entry);
}

void request_queue_refuse(request_queue *q, const char *line, size_t size, long line_number, size_t tag,
                          const err *why) {
  request r;
  json_t *id;
  err ignored = {0};
  request_json_read(line, size, q->defaults, q->model->config.vocab, &r, &id, &ignored); /* for its id */
  request_fini(&r);
  if (!id) id = json_integer(line_number);
  give_error(q, line_number, tag, id, why);
  json_decref(id);
}
