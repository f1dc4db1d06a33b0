#include "orchestrator/service/request_queue.h"

#include "orchestrator/service/batch.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/result.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static void give(request_queue *r, size_t tag, json_t *object) {
  char *line = result_line(object);
  if (!line) r->out_of_memory = true;
  r->on_result(r->owner, tag, line);
}

static void note_failure(request_queue *r, long number, const char *why) {
  r->failed++;
  log_line(r->log, LOG_WARNING, "line %ld: %s", number, why);
}

static void request_free(request *q) {
  completion_fini(&q->answer);
  json_decref(q->id);
  free(q);
}

static void give_error(request_queue *r, long number, size_t tag, json_t *id, const err *why) {
  note_failure(r, number, why->text);
  json_t *shown = id ? json_incref(id) : json_null();
  give(r, tag, result_of_error(shown, why->text));
  json_decref(shown);
}

/* --- the beginning --- */

static int begin(request_queue *r, request *q, const char *line, size_t size, err *e) {
  flags own = *r->flags;
  json_t *object;
  int rc = batch_read_line(line, size, r->model, &own, &object, &q->answer.prompt, e);
  q->id = json_incref(batch_id(object));
  r->dropped_bytes += q->answer.prompt.dropped_bytes;
  if (rc == ERR_OK) rc = completion_begin(&q->answer, r->pair, &own, r->context, e);
  json_decref(object);
  return rc;
}

void request_queue_begin(request_queue *r, const char *line, size_t size, long number, size_t tag) {
  err e = {0};
  assert(r->running < REQUEST_QUEUE_MAX);
  request *q = calloc(1, sizeof *q);
  if (!q) {
    err_set(&e, ERR_NOMEM, "out of memory");
    give_error(r, number, tag, NULL, &e);
    return;
  }
  q->number = number;
  q->tag = tag;
  completion_init(&q->answer, r->model);
  if (begin(r, q, line, size, &e) == ERR_OK) {
    r->list[r->running++] = q;
    return;
  }
  give_error(r, number, tag, q->id, &e);
  request_free(q);
}

void request_queue_refuse(request_queue *r, const char *line, size_t size, long number, size_t tag,
                          const err *why) {
  flags own = *r->flags;
  tokenizer_ids prompt = {0};
  json_t *object;
  err e = {0};
  batch_read_line(line, size, r->model, &own, &object, &prompt, &e); /* for its id */
  tokenizer_ids_fini(&prompt);
  give_error(r, number, tag, batch_id(object), why);
  json_decref(object);
}

/* --- the end --- */

static void take(request_queue *r, request *q) {
  const completion *a = &q->answer;
  if (a->finish == WIRE_FINISH_ERROR)
    note_failure(r, q->number, a->trouble.text);
  else
    r->answers++;
  r->cancelled += a->finish == WIRE_FINISH_CANCELLED;
  r->tokens += a->count;
  r->rounds += a->stats.rounds;
  r->accepted += a->stats.accepted;
  r->drafted += a->stats.rows;
  const char *off = completion_off_reason(a);
  if (off && r->off++ == 0) snprintf(r->off_reason, sizeof r->off_reason, "%s", off);
  give(r, q->tag, result_of(a, q->id));
  request_free(q);
}

static void look(request_queue *r, const err *why) {
  const char *text;
  size_t size;
  int32_t left = 0;
  for (int32_t i = 0; i < r->running; i++) {
    request *q = r->list[i];
    if (why)
      completion_fail(&q->answer, r->pair, why);
    else
      completion_look(&q->answer, r->pair, &text, &size);
    if (q->answer.finish && !q->answer.session)
      take(r, q);
    else
      r->list[left++] = q;
  }
  r->running = left;
}

void request_queue_look(request_queue *r) {
  look(r, NULL);
}

void request_queue_fail(request_queue *r, const err *why) {
  look(r, why);
}

void request_queue_cancel(request_queue *r) {
  for (int32_t i = 0; i < r->running; i++)
    if (!r->list[i]->answer.finish) service_cancel(r->pair, r->list[i]->answer.session);
}

int request_queue_report(const request_queue *r) {
  command_warn_dropped(r->dropped_bytes);
  fprintf(stderr,
          "tandem: %zu answers, %lld tokens; draft %s: %llu rounds, %.2f accepted a round (%llu of %llu)",
          r->answers, (long long)r->tokens, flags_wants_draft(r->flags) ? r->flags->draft : "none",
          (unsigned long long)r->rounds, r->rounds ? (double)r->accepted / (double)r->rounds : 0.0,
          (unsigned long long)r->accepted, (unsigned long long)r->drafted);
  if (r->off) fprintf(stderr, "; the end of %zu was decoded plainly: %s", r->off, r->off_reason);
  if (r->failed) fprintf(stderr, "; %zu FAILED", r->failed);
  if (r->cancelled) fprintf(stderr, "; %zu cancelled", r->cancelled);
  fprintf(stderr, "\n");
  if (r->out_of_memory) return command_error(STATUS_FAILED, "out of memory");
  if (service_signal(r->pair)) return command_signal_status(service_signal(r->pair));
  if (service_trouble(r->pair, NULL)) return STATUS_WORKER;
  if (!service_kept(r->pair)) return STATUS_IO;
  return r->failed ? STATUS_FAILED : STATUS_OK;
}
