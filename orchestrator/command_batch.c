/* tandem batch: a file of prompts, several at a time; the answers in the order of the prompts. */
#include "orchestrator/batch.h"
#include "orchestrator/commands.h"
#include "orchestrator/input.h"
#include "orchestrator/output.h"
#include "orchestrator/result.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct item { /* one line of IN */
  const char *line;
  size_t size;
  long number; /* of the line, from 1 */
  json_t *id;  /* NULL until read */
  answer answer;
  char *result; /* its line of OUT, once over */
} item;

typedef struct batch {
  flags flags;
  text_model model;
  int32_t context;
  logger log;
  pair *pair;
  output out;
  int out_fd;
  item *items;
  size_t count, next, written; /* items begun or refused; results handed to `out` */
  size_t failed, cancelled, off;
  char off_reason[WIRE_STRING_MAX + 1]; /* of the first answer that ended without speculation */
  int32_t running;
  int64_t tokens; /* of all answers */
  uint64_t rounds, accepted, drafted;
  size_t dropped_bytes;
  bool out_of_memory, finished;
} batch;

/* ---- results ---- */

static void keep_result(batch *b, item *it, json_t *object) {
  it->result = result_line(object);
  if (!it->result) b->out_of_memory = true;
}

/* Answers that took longer hold back the later ones. */
static void write_results(batch *b) {
  while (b->written < b->count && b->items[b->written].result) {
    item *it = &b->items[b->written++];
    if (output_add(&b->out, it->result, strlen(it->result))) b->out_of_memory = true;
    free(it->result);
    it->result = NULL;
  }
}

static void note_failure(batch *b, const item *it, const char *why) {
  b->failed++;
  log_line(&b->log, LOG_WARNING, "line %ld: %s", it->number, why);
}

/* Prompt and text of an answer are in its result. */
static void drop_answer(item *it) {
  answer_fini(&it->answer);
  json_decref(it->id);
  it->id = NULL;
}

static void refuse(batch *b, item *it, const err *why) {
  note_failure(b, it, why->text);
  json_t *id = it->id ? json_incref(it->id) : json_null();
  keep_result(b, it, result_of_error(id, why->text));
  json_decref(id);
  drop_answer(it);
}

static void take_answer(batch *b, item *it) {
  const answer *a = &it->answer;
  if (a->finish == WIRE_FINISH_ERROR) note_failure(b, it, a->trouble.text);
  if (a->finish == WIRE_FINISH_CANCELLED) b->cancelled++;
  b->tokens += a->count;
  b->rounds += a->stats.rounds;
  b->accepted += a->stats.accepted;
  b->drafted += a->stats.rows;
  const char *off = answer_off_reason(a);
  if (off && b->off++ == 0) snprintf(b->off_reason, sizeof b->off_reason, "%s", off);
  keep_result(b, it, result_of(a, it->id));
  drop_answer(it);
  b->running--;
}

/* ---- while it runs ---- */

static void begin_next(batch *b) {
  item *it = &b->items[b->next++];
  err e = {0};
  answer_init(&it->answer, &b->model);
  int rc = batch_read_line(it->line, it->size, &b->model, &b->flags, &it->id, &it->answer.prompt, &e);
  b->dropped_bytes += it->answer.prompt.dropped_bytes;
  if (rc == ERR_OK) rc = answer_begin(&it->answer, b->pair, &b->flags, b->context, &e);
  if (rc)
    refuse(b, it, &e);
  else
    b->running++;
}

static void look_at_all(batch *b, const err *trouble) {
  const char *text;
  size_t size;
  for (size_t i = b->written; i < b->next; i++) {
    item *it = &b->items[i];
    if (it->result || !it->answer.model) continue;
    if (trouble)
      answer_fail(&it->answer, b->pair, trouble);
    else
      answer_look(&it->answer, b->pair, &text, &size);
    if (it->answer.finish && !it->answer.session) take_answer(b, it);
  }
}

static void cancel_all(batch *b) {
  for (size_t i = b->written; i < b->next; i++)
    if (b->items[i].answer.session && !b->items[i].answer.finish)
      pair_cancel(b->pair, b->items[i].answer.session);
}

static void finish(batch *b) {
  if (b->finished || b->running > 0 || b->next < b->count || !output_idle(&b->out)) return;
  b->finished = true;
  pair_finish(b->pair);
}

/* What has not begun stays out of OUT after a signal, and is an error there after a failure. */
static void give_up(batch *b, const err *trouble) {
  for (; trouble && b->next < b->count; b->next++) {
    item *it = &b->items[b->next];
    err e = {0};
    batch_read_line(it->line, it->size, &b->model, &b->flags, &it->id, &it->answer.prompt, &e);
    refuse(b, it, trouble);
  }
  b->count = b->next;
}

static void on_news(void *owner) {
  batch *b = owner;
  err trouble = {0};
  bool bad = pair_trouble(b->pair, &trouble) != ERR_OK, stop = pair_signal(b->pair) || b->out.failed;
  if (stop && !bad) cancel_all(b);
  look_at_all(b, bad ? &trouble : NULL);
  if (bad || stop)
    give_up(b, bad ? &trouble : NULL);
  else if (pair_ready(b->pair))
    while (b->running < b->flags.sessions && b->next < b->count) begin_next(b);
  write_results(b);
  finish(b);
}

static void on_written(void *context) {
  batch *b = context;
  if (b->out.failed)
    on_news(b);
  else
    finish(b);
}

/* ---- before and after ---- */

static bool is_blank(const char *line, size_t size) {
  for (size_t i = 0; i < size; i++)
    if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
  return true;
}

static int split_lines(batch *b, const input *in, err *e) {
  size_t capacity = 0;
  long number = 0;
  for (size_t at = 0; at < in->size;) {
    const char *line = in->data + at, *end = memchr(line, '\n', in->size - at);
    size_t size = end ? (size_t)(end - line) : in->size - at;
    at += size + 1;
    number++;
    if (is_blank(line, size)) continue;
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

static int prepare(batch *b, input *in) {
  err e = {0};
  const char *to = b->flags.arguments[1];
  int rc = text_model_open(&b->model, b->flags.model, &e);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_MODEL, "%s", e.text);
  if (text_model_context(&b->model, b->flags.context, &b->context, &e))
    return command_error(STATUS_USAGE, "%s", e.text);
  rc = input_read(in, b->flags.arguments[0], BATCH_FILE_MAX, &e);
  if (rc == ERR_OK) rc = split_lines(b, in, &e);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_IO, "%s", e.text);
  if (b->count == 0) return command_error(STATUS_INPUT, "%s has no lines", b->flags.arguments[0]);
  b->out_fd = strcmp(to, "-") == 0 ? STDOUT_FILENO : open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  return b->out_fd < 0 ? command_error(STATUS_IO, "cannot write %s: %s", to, strerror(errno)) : STATUS_OK;
}

static int report(batch *b) {
  command_warn_dropped(b->dropped_bytes);
  fprintf(
      stderr, "tandem: %zu answers, %lld tokens; draft %s: %llu rounds, %.2f accepted a round (%llu of %llu)",
      b->written - b->failed, (long long)b->tokens, flags_wants_draft(&b->flags) ? b->flags.draft : "none",
      (unsigned long long)b->rounds, b->rounds ? (double)b->accepted / (double)b->rounds : 0.0,
      (unsigned long long)b->accepted, (unsigned long long)b->drafted);
  if (b->off) fprintf(stderr, "; SPECULATION WAS OFF at the end of %zu: %s", b->off, b->off_reason);
  if (b->failed) fprintf(stderr, "; %zu FAILED", b->failed);
  if (b->cancelled) fprintf(stderr, "; %zu cancelled", b->cancelled);
  fprintf(stderr, "\n");
  if (b->out.failed)
    return command_error(STATUS_IO, "cannot write the answers: %s", uv_strerror(b->out.failed));
  if (b->out_of_memory) return command_error(STATUS_FAILED, "out of memory");
  if (pair_signal(b->pair)) return command_signal_status(pair_signal(b->pair));
  if (pair_trouble(b->pair, NULL)) return STATUS_WORKER;
  if (!pair_kept(b->pair)) return STATUS_IO;
  return b->failed ? STATUS_FAILED : STATUS_OK;
}

static int answer_all(batch *b) {
  err e = {0};
  pair_options o = {
      .flags = &b->flags, .context = b->context, .log = &b->log, .on_news = on_news, .owner = b};
  if (pair_open(&b->pair, &o, &e)) return command_error(STATUS_WORKER, "%s", e.text);
  output_init(&b->out, pair_loop(b->pair), b->out_fd, on_written, b);
  int rc = text_model_load(&b->model, b->flags.template, &e);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_MODEL, "%s", e.text);
  rc = pair_serve(b->pair, &b->model, &e);
  if (rc) return command_error(command_serve_status(rc), "%s", e.text);
  pair_run(b->pair);
  return report(b);
}

int command_batch(int argc, char **argv) {
  batch b = {.out_fd = -1};
  input in = {0};
  flags_parse(&b.flags, FLAGS_BATCH, argc, argv);
  b.log = (logger){"tandem", b.flags.verbose ? LOG_INFO : LOG_WARNING};
  int code = prepare(&b, &in);
  if (code == STATUS_OK) code = answer_all(&b);
  pair_close(b.pair);
  output_fini(&b.out);
  if (b.out_fd > STDOUT_FILENO && close(b.out_fd) != 0 && code == STATUS_OK)
    code = command_error(STATUS_IO, "cannot write %s: %s", b.flags.arguments[1], strerror(errno));
  free(b.items);
  text_model_close(&b.model);
  input_fini(&in);
  return code;
}
