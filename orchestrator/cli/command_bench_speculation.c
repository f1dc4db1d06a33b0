/* tandem bench spec: every prompt plainly and with a draft, by turns, for each method; what it was worth. A
 * method has its own workers, one after the other, and its own plain answers, so that noise meets both alike.
 */
#include "orchestrator/cli/bench_prompts.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/speculation_figures.h"
#include "orchestrator/cli/verify_trees.h"
#include "orchestrator/service/result_json.h"
#include "wire/draft_methods.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define METHODS_MAX     16
#define IN_BYTES_MAX    (1u << 30)
#define ALL             "all"
#define METHOD_TEXT_MAX 4096

typedef struct bench {
  flags flags;
  text_model model;
  logger log;
  bench_prompts prompts;
  char methods_text[METHOD_TEXT_MAX]; /* cut into: */
  char *methods[METHODS_MAX];         /* as --draft takes them */
  int32_t method_count;
  speculation_figures (*figures)[BENCH_PROMPTS_CATEGORIES_MAX + 1]; /* [method_count]; [0]: of all */

  /* The method that is tried now. */
  int32_t method;
  service *service;
  completion answers[2]; /* plain, drafted */
  size_t turn;           /* 0 warms up; then two turns for each prompt */
  bool running, over;
  int code; /* why it had to stop */
} bench;

static size_t prompt_of(const bench *b) {
  return b->turn ? (b->turn - 1) / 2 % b->prompts.count : 0;
}

/* Even prompts are answered plainly first, odd ones with the draft first; at the next repetition the other
 * way round. */
static bool with_draft(const bench *b) {
  size_t nth = b->turn ? (b->turn - 1) / 2 : 0, round = nth / b->prompts.count;
  return b->turn && (((b->turn - 1) % 2) ^ (nth % 2) ^ (b->prompts.count % 2 ? 0 : round % 2));
}

static bool is_second(const bench *b) {
  return b->turn && (b->turn - 1) % 2 == 1;
}

static void stop(bench *b, int code) {
  if (b->over) return;
  b->over = true;
  b->code = code;
  service_finish(b->service);
}

static void begin_turn(bench *b) {
  err e = {0};
  completion *c = &b->answers[with_draft(b)];
  const bench_prompt *p = &b->prompts.list[prompt_of(b)];
  request q = p->request; /* shares what the request owns, for this call */
  q.speculate = with_draft(b);
  completion_fini(c);
  completion_init(c, &b->model, NULL);
  if (completion_begin(c, b->service, &q, &e))
    stop(b, command_error(STATUS_INPUT, "line %ld: %s", p->line, e.text));
  else
    b->running = true;
}

static void tell_progress(const bench *b, bool last) {
  size_t all = b->prompts.count * (size_t)b->flags.repeat, done = b->turn ? (b->turn - 1) / 2 : 0;
  if (!isatty(STDERR_FILENO)) return;
  fprintf(stderr, "\r\033[K");
  if (!last) fprintf(stderr, "%s: %zu of %zu prompts", b->methods[b->method], done, all);
  fflush(stderr);
}

static void end_turn(bench *b) {
  const completion *c = &b->answers[with_draft(b)];
  const bench_prompt *p = &b->prompts.list[prompt_of(b)];
  b->running = false;
  if (c->finish == WIRE_FINISH_ERROR) {
    stop(b, command_error(STATUS_WORKER, "line %ld: %s", p->line, c->trouble.text));
    return;
  }
  if (is_second(b)) {
    speculation_figures_add(&b->figures[b->method][0], &b->answers[0], &b->answers[1]);
    speculation_figures_add(&b->figures[b->method][1 + p->category], &b->answers[0], &b->answers[1]);
  }
  b->turn++;
  if (is_second(b)) tell_progress(b, false);
  if (b->turn > 2 * b->prompts.count * (size_t)b->flags.repeat) stop(b, STATUS_OK);
}

static void on_news(void *owner) {
  bench *b = owner;
  err trouble = {0};
  completion *c = &b->answers[with_draft(b)];
  if (service_trouble(b->service, &trouble)) {
    if (b->running) completion_fail(c, b->service, &trouble);
    stop(b, command_service_error(&b->flags, b->service, &trouble));
  } else if (service_signal(b->service)) {
    if (b->running) completion_cancel(c, b->service);
    stop(b, command_signal_status(service_signal(b->service)));
  }
  if (b->running) completion_update(c, b->service);
  if (b->over) return;
  if (b->running && completion_is_over(c)) end_turn(b);
  if (!b->over && !b->running && service_ready(b->service)) begin_turn(b);
}

/* ---- one method after the other ---- */

static int serve_method(bench *b) {
  err e = {0};
  int rc = service_serve(b->service, &b->model, &e);
  if (rc) return command_error(command_serve_status(rc), "%s", e.text);
  service_run(b->service);
  tell_progress(b, true);
  return b->code;
}

static int print_trees(bench *b, const char *steps, int code) {
  err e = {0};
  if (!b->flags.tree || verify_trees_end(steps, b->flags.tree, &b->model, &e) == ERR_OK) return code;
  return command_error(STATUS_IO, "--tree: %s", e.text);
}

static int try_method(bench *b) {
  err e = {0};
  b->flags.workers.draft = b->methods[b->method];
  service_options o = command_service_options(&b->flags, b->flags.request.context, &b->log);
  if (!draft_methods_compute(o.workers.draft)) o.workers.draft_model = NULL, o.workers.draft_layers = 0;
  o.on_news = on_news;
  o.owner = b;
  char steps[VERIFY_TREES_PATH_MAX];
  if (b->flags.tree && verify_trees_begin(steps, &e)) return command_error(STATUS_IO, "--tree: %s", e.text);
  o.workers.record_steps = b->flags.tree ? steps : NULL;
  b->turn = 0;
  b->running = b->over = false;
  int code = service_open(&b->service, &o, &e) ? command_error(STATUS_WORKER, "%s", e.text) : serve_method(b);
  for (int i = 0; i < 2; i++) completion_fini(&b->answers[i]);
  service_close(b->service);
  b->service = NULL;
  return print_trees(b, steps, code);
}

/* "ngram,model+ngram" are two methods, of which the second one joins two drafters. */
static int take_methods(bench *b) {
  const char *text = b->flags.methods ? b->flags.methods : b->flags.workers.draft;
  if (strlen(text) >= sizeof b->methods_text) return command_error(STATUS_USAGE, "--methods is too long");
  strcpy(b->methods_text, text);
  if (!b->flags.methods) {
    b->methods[b->method_count++] = b->methods_text;
    return STATUS_OK;
  }
  for (char *at = b->methods_text, *name; (name = strsep(&at, ","));) {
    err e = {0};
    worker_settings w = b->flags.workers;
    for (char *c = name; *c; c++)
      if (*c == '+') *c = ',';
    w.draft = name;
    if (!draft_methods_compute(name)) w.draft_model = NULL, w.draft_layers = 0;
    if (strcmp(name, "none") == 0) err_set(&e, ERR_ARG, "none is what every method is compared with");
    if (e.code || flags_check_draft(&w, &e)) return command_error(STATUS_USAGE, "--methods: %s", e.text);
    if (b->method_count == METHODS_MAX)
      return command_error(STATUS_USAGE, "--methods has more than %d", METHODS_MAX);
    b->methods[b->method_count++] = name;
  }
  return STATUS_OK;
}

static int prepare(bench *b) {
  err e = {0};
  input_file in = {0};
  const char *path = b->flags.arguments[0];
  int code = take_methods(b);
  if (code) return code;
  int rc = text_model_open(&b->model, b->flags.workers.model, &e);
  if (rc == ERR_OK) rc = text_model_load(&b->model, b->flags.template, &e);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_MODEL, "%s", e.text);
  code = command_context(&b->model, b->flags.request.context, &b->flags.request.context);
  if (code) return code;
  if (input_file_read(&in, path, IN_BYTES_MAX, &e)) return command_error(STATUS_IO, "%s", e.text);
  rc = bench_prompts_read(&b->prompts, &in, &b->flags.request, b->model.config.vocab, &e);
  input_file_fini(&in);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_INPUT, "%s: %s", path, e.text);
  b->figures = calloc((size_t)b->method_count, sizeof *b->figures);
  return b->figures ? STATUS_OK : command_error(STATUS_FAILED, "out of memory");
}

/* ---- what came out ---- */

static int32_t rows_of(const bench *b) { /* of one method: all, and each category if there are several */
  return b->prompts.category_count > 1 ? 1 + b->prompts.category_count : 1;
}

static const char *category_name(const bench *b, int32_t row) {
  return row ? b->prompts.categories[row - 1] : ALL;
}

static void print_table(const bench *b) {
  const request *r = &b->flags.request;
  printf("%zu prompts, at most %d tokens each, temperature %g; plainly and with the draft by turns, %d "
         "time%s\n\n",
         b->prompts.count, r->max_tokens, (double)r->sampling.temperature, b->flags.repeat,
         b->flags.repeat == 1 ? "" : "s");
  speculation_figures_print_head(stdout);
  for (int32_t m = 0; m < b->method_count; m++) {
    for (int32_t row = 0; row < rows_of(b); row++)
      speculation_figures_print(stdout, b->methods[m], category_name(b, row), &b->figures[m][row]);
    speculation_figures_print_positions(stdout, &b->figures[m][0]);
  }
}

static int print_json(const bench *b) {
  const request *r = &b->flags.request;
  json_t *o = json_object(), *rows = json_array();
  for (int32_t m = 0; m < b->method_count; m++)
    for (int32_t row = 0; row < rows_of(b); row++)
      json_array_append_new(
          rows, speculation_figures_json(b->methods[m], category_name(b, row), &b->figures[m][row]));
  json_object_set_new(o, "model", json_string(b->flags.workers.model));
  json_object_set_new(o, "prompts", json_integer((json_int_t)b->prompts.count));
  json_object_set_new(o, "max_tokens", json_integer(r->max_tokens));
  json_object_set_new(o, "temperature", json_real((double)r->sampling.temperature));
  json_object_set_new(o, "seed", json_integer((json_int_t)r->sampling.seed));
  json_object_set_new(o, "repeat", json_integer(b->flags.repeat));
  json_object_set_new(o, "rows", rows);
  char *line = result_json_line(o);
  if (!line) return command_error(STATUS_FAILED, "out of memory");
  fputs(line, stdout);
  free(line);
  return STATUS_OK;
}

static int report(const bench *b) {
  int32_t different = 0;
  int code = STATUS_OK;
  for (int32_t m = 0; m < b->method_count; m++) different += b->figures[m][0].different;
  if (b->flags.json)
    code = print_json(b);
  else
    print_table(b);
  if (fflush(stdout) != 0) return command_error(STATUS_IO, "cannot write the table");
  if (different)
    return command_error(STATUS_FAILED, "%d answers differ from plain decoding: that is a bug", different);
  return code;
}

int command_bench_speculation(int argc, char **argv) {
  bench *b = calloc(1, sizeof *b);
  if (!b) return command_error(STATUS_FAILED, "out of memory");
  flags_parse(&b->flags, FLAGS_BENCH, argc, argv);
  b->log = (logger){"tandem", b->flags.workers.verbose ? LOG_INFO : LOG_WARNING};
  int code = prepare(b);
  for (b->method = 0; code == STATUS_OK && b->method < b->method_count; b->method++) code = try_method(b);
  if (code == STATUS_OK) code = report(b);
  bench_prompts_fini(&b->prompts);
  free(b->figures);
  text_model_close(&b->model);
  flags_fini(&b->flags);
  free(b);
  return code;
}
