/* tandem bench spec: every prompt plainly and with a draft, by turns, for each method, size of tree and
 * temperature; what it was worth. Each of these trials has its own workers, one after the other, and its own
 * plain answers, so that noise meets both alike. */
#include "common/base/terminal.h"
#include "orchestrator/cli/bench_prompts.h"
#include "orchestrator/cli/bench_trials.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/default_head.h"
#include "orchestrator/cli/speculation_figures.h"
#include "orchestrator/cli/verify_trees.h"
#include "orchestrator/service/result_json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IN_BYTES_MAX (1u << 30)
#define ALL          "all"

typedef struct bench {
  flags flags;
  text_model model;
  logger log;
  bench_prompts prompts;
  bench_trials trials;
  speculation_figures (*figures)[BENCH_PROMPTS_CATEGORIES_MAX + 1]; /* [trials.count]; [0]: of all */

  /* The trial that runs now. */
  int32_t trial;
  service *service;
  completion answers[2]; /* plain, drafted */
  /* Microseconds a token, [prompts.count][2][flags.given.repeat]; 0: too short to time. */
  double *times;
  size_t turn; /* 0 warms up; then two turns for each repetition of each prompt */
  bool running, over;
  int code; /* why it had to stop */
} bench;

static size_t nth_of(const bench *b) {
  return b->turn ? (b->turn - 1) / 2 : 0;
}

static size_t prompt_of(const bench *b) {
  return nth_of(b) / (size_t)b->flags.given.repeat;
}

static size_t round_of(const bench *b) {
  return nth_of(b) % (size_t)b->flags.given.repeat;
}

static bool is_second(const bench *b) {
  return b->turn && (b->turn - 1) % 2 == 1;
}

/* The draft is there when a prompt is read for the first time, as it is for people: a head that finds the
 * prompt in the target's cache gets the states of its end only. At the next repetition the plain answer comes
 * first. */
static bool with_draft(const bench *b) {
  return is_second(b) == (round_of(b) % 2 == 1);
}

static const bench_trial *trial_of(const bench *b) {
  return &b->trials.list[b->trial];
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
  const bench_trial *t = trial_of(b);
  request q = p->request; /* shares what the request owns, for this call */
  if (with_draft(b))
    q.speculate = true;
  else
    request_speculate_not(&q);
  q.lockstep = t->size->lockstep;
  q.budget = t->size->budget;
  q.sampling.temperature = t->temperature;
  completion_fini(c);
  completion_init(c, &b->model, NULL);
  if (completion_begin(c, b->service, &q, &e))
    stop(b, command_error(STATUS_INPUT, "line %ld: %s", p->line, e.text));
  else
    b->running = true;
}

static void tell_progress(const bench *b, bool last) {
  size_t all = b->prompts.count * (size_t)b->flags.given.repeat, done = nth_of(b);
  const bench_trial *t = trial_of(b);
  if (!terminal_takes_colours(STDERR_FILENO)) return;
  fprintf(stderr, "\r\033[K");
  if (!last)
    fprintf(stderr, "%s, %s, temperature %g: %zu of %zu prompts", t->method, t->size->name,
            (double)t->temperature, done, all);
  fflush(stderr);
}

static double *times_of(const bench *b, size_t prompt, bool drafted) {
  return &b->times[(2 * prompt + drafted) * (size_t)b->flags.given.repeat];
}

static void keep_times(bench *b) {
  for (int i = 0; i < 2; i++) {
    int32_t tokens = completion_timed_tokens(&b->answers[i]);
    times_of(b, prompt_of(b), i)[round_of(b)] =
        tokens ? (double)completion_timed_us(&b->answers[i]) / tokens : 0;
  }
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *list, size_t count) {
  qsort(list, count, sizeof *list, by_size);
  return (list[(count - 1) / 2] + list[count / 2]) / 2;
}

/* The clocks of a prompt that was answered for the last time: medians of its repetitions. */
static void add_times(bench *b, int32_t tokens) {
  size_t prompt = prompt_of(b), repeat = (size_t)b->flags.given.repeat;
  double plain = median(times_of(b, prompt, false), repeat);
  double drafted = median(times_of(b, prompt, true), repeat);
  speculation_figures *f = b->figures[b->trial];
  speculation_figures_add_times(&f[0], tokens, plain, drafted);
  speculation_figures_add_times(&f[1 + b->prompts.list[prompt].category], tokens, plain, drafted);
}

static void end_prompt(bench *b) {
  speculation_figures *f = b->figures[b->trial];
  int32_t category = b->prompts.list[prompt_of(b)].category;
  speculation_figures_add(&f[0], &b->answers[0], &b->answers[1]);
  speculation_figures_add(&f[1 + category], &b->answers[0], &b->answers[1]);
  keep_times(b);
  if (round_of(b) + 1 == (size_t)b->flags.given.repeat) add_times(b, b->answers[0].count);
}

static void end_turn(bench *b) {
  const completion *c = &b->answers[with_draft(b)];
  const bench_prompt *p = &b->prompts.list[prompt_of(b)];
  b->running = false;
  if (c->finish == WIRE_FINISH_ERROR) {
    stop(b, command_error(STATUS_WORKER, "line %ld: %s", p->line, c->trouble.text));
    return;
  }
  if (is_second(b)) end_prompt(b);
  b->turn++;
  if (is_second(b)) tell_progress(b, false);
  if (b->turn > 2 * b->prompts.count * (size_t)b->flags.given.repeat) stop(b, STATUS_OK);
}

static void on_news(void *owner) {
  bench *b = owner;
  err trouble = {0};
  completion *c = &b->answers[with_draft(b)];
  if (service_trouble(b->service, &trouble)) {
    if (b->running) completion_fail(c, b->service, &trouble);
    if (!b->over) stop(b, command_trouble(b->service, &trouble));
  } else if (service_signal(b->service)) {
    if (b->running) completion_cancel(c, b->service);
    stop(b, command_signal_status(service_signal(b->service)));
  }
  if (b->running) completion_update(c, b->service);
  if (b->over) return;
  if (b->running && completion_is_over(c)) end_turn(b);
  if (!b->over && !b->running && service_ready(b->service)) begin_turn(b);
}

/* ---- one trial after the other ---- */

static int serve_trial(bench *b) {
  err e = {0};
  int rc = service_serve(b->service, &b->model, &e);
  if (rc) return command_error(command_serve_status(rc), "%s", e.text);
  service_run(b->service);
  tell_progress(b, true);
  return b->code;
}

static int print_trees(bench *b, const char *steps, int code) {
  err e = {0};
  if (!b->flags.given.tree || verify_trees_end(steps, b->flags.given.tree, &b->model, &e) == ERR_OK)
    return code;
  return command_error(STATUS_IO, "--tree: %s", e.text);
}

static int run_trial(bench *b) {
  err e = {0};
  service_options o = command_service_options(&b->flags, b->flags.request.context, &b->log);
  bench_trials_settings(trial_of(b), &o.workers);
  o.with_draft = o.draft_needed = true;
  o.on_news = on_news;
  o.owner = b;
  char steps[VERIFY_TREES_PATH_MAX];
  if (b->flags.given.tree && verify_trees_begin(steps, &e))
    return command_error(STATUS_IO, "--tree: %s", e.text);
  o.workers.record_steps = b->flags.given.tree ? steps : NULL;
  b->turn = 0;
  b->running = b->over = false;
  int code = service_open(&b->service, &o, &e) ? command_error(STATUS_WORKER, "%s", e.text) : serve_trial(b);
  for (int i = 0; i < 2; i++) completion_fini(&b->answers[i]);
  service_close(b->service);
  b->service = NULL;
  return print_trees(b, steps, code);
}

static int open_model(bench *b) {
  err e = {0};
  int rc = text_model_open(&b->model, b->flags.given.model, &e);
  if (rc == ERR_OK) rc = text_model_load(&b->model, b->flags.given.template, &e);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_FILE, "%s", e.text);
  default_head_use(&b->flags, b->model.file);
  return command_context(&b->model, b->flags.request.context, &b->flags.request.context);
}

static int prepare(bench *b) {
  err e = {0};
  input_file in = {0};
  const char *path = b->flags.given.arguments[0];
  int code = open_model(b);
  if (code) return code;
  if (bench_trials_read(&b->trials, &b->flags, &e)) return command_error(STATUS_USAGE, "%s", e.text);
  if (input_file_read(&in, path, IN_BYTES_MAX, &e)) return command_error(STATUS_IO, "%s", e.text);
  int rc = bench_prompts_read(&b->prompts, &in, &b->flags.request, b->model.config.vocab, &e);
  input_file_fini(&in);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_INPUT, "%s: %s", path, e.text);
  b->figures = calloc((size_t)b->trials.count, sizeof *b->figures);
  b->times = calloc(2 * b->prompts.count * (size_t)b->flags.given.repeat, sizeof *b->times);
  return b->figures && b->times ? STATUS_OK : command_error(STATUS_FAILED, "out of memory");
}

/* ---- what came out ---- */

static int32_t rows_of(const bench *b) { /* of one trial: all, and each category if there are several */
  return b->prompts.category_count > 1 ? 1 + b->prompts.category_count : 1;
}

static speculation_label label_of(const bench *b, int32_t trial, int32_t row) {
  const bench_trial *t = &b->trials.list[trial];
  const char *category = row ? b->prompts.categories[row - 1] : ALL;
  return (speculation_label){t->method, t->size->name, category, t->temperature};
}

/* The category that gains least, of those that were timed; 0: there are no several ones. */
static int32_t worst_of(const bench *b, int32_t trial) {
  const speculation_figures *f = b->figures[trial];
  int32_t worst = 0;
  for (int32_t row = 1; row < rows_of(b); row++) {
    double gain = speculation_figures_gain(&f[row]);
    if (gain > 0 && (!worst || gain < speculation_figures_gain(&f[worst]))) worst = row;
  }
  return worst;
}

static void print_trial(const bench *b, int32_t trial) {
  const speculation_figures *f = b->figures[trial];
  for (int32_t row = 0; row < rows_of(b); row++) {
    speculation_label l = label_of(b, trial, row);
    speculation_figures_print(stdout, &l, &f[row]);
  }
  speculation_figures_print_positions(stdout, &f[0]);
  speculation_figures_print_ahead(stdout, &f[0]);
  int32_t worst = worst_of(b, trial);
  if (worst)
    printf("  the category that gains least: %s, %.2f\n", b->prompts.categories[worst - 1],
           speculation_figures_gain(&f[worst]));
}

static void print_table(const bench *b) {
  printf("%zu prompts, at most %d tokens each; plainly and with the draft by turns, %d time%s\n\n",
         b->prompts.count, b->flags.request.max_tokens, b->flags.given.repeat,
         b->flags.given.repeat == 1 ? "" : "s");
  speculation_figures_print_head(stdout);
  for (int32_t i = 0; i < b->trials.count; i++) print_trial(b, i);
}

static int print_json(const bench *b) {
  const request *r = &b->flags.request;
  json_t *o = json_object(), *rows = json_array();
  for (int32_t i = 0; i < b->trials.count; i++)
    for (int32_t row = 0; row < rows_of(b); row++) {
      speculation_label l = label_of(b, i, row);
      json_array_append_new(rows, speculation_figures_json(&l, &b->figures[i][row]));
    }
  json_object_set_new(o, "model", json_string(b->flags.given.model));
  json_object_set_new(o, "draft_model",
                      b->flags.given.draft_model ? json_string(b->flags.given.draft_model) : json_null());
  json_object_set_new(o, "prompts", json_integer((json_int_t)b->prompts.count));
  json_object_set_new(o, "max_tokens", json_integer(r->max_tokens));
  json_object_set_new(o, "seed", json_integer((json_int_t)r->sampling.seed));
  json_object_set_new(o, "repeat", json_integer(b->flags.given.repeat));
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
  for (int32_t i = 0; i < b->trials.count; i++) different += b->figures[i][0].different;
  if (b->flags.given.json)
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
  flags_parse(&b->flags, COMMAND_BENCH_SPECULATION, argc, argv);
  b->log = (logger){"tandem", b->flags.given.verbose ? LOG_INFO : LOG_WARNING};
  int code = prepare(b);
  for (b->trial = 0; code == STATUS_OK && b->trial < b->trials.count; b->trial++) code = run_trial(b);
  if (code == STATUS_OK) code = report(b);
  bench_prompts_fini(&b->prompts);
  free(b->figures);
  free(b->times);
  text_model_close(&b->model);
  flags_fini(&b->flags);
  free(b);
  return code;
}
