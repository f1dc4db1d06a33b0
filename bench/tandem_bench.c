/* tandem-bench: what `tandem bench` runs. `step`: where the time of one step of a model goes on this machine,
 * op by op, beside what the machine could do at best. `kv`: bench/kv_command.h. `serve`: bench/serve/serve.h.
 */
#include "bench/command_flags.h"
#include "bench/kv_command.h"
#include "bench/limits.h"
#include "bench/probe.h"
#include "bench/serve/serve.h"
#include "bench/step.h"
#include "bench/timed_threads.h"
#include "common/base/cpus.h"
#include "common/base/program.h"
#include "common/command_line/flag_reader.h"
#include "common/command_line/flag_variables.h"
#include "version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTHS_MAX       8
#define REPETITIONS_MAX  TIMED_THREADS_PASSES_MAX
#define CONTEXT_DEFAULT  128
#define WARM_UP          2
#define ARITHMETIC_SHARE 0.7 /* of the multiplying rate: what is left beside the work on scales */

typedef struct flags {
  flag_values given;
  int32_t widths[WIDTHS_MAX], width_count;
} flags;

/* One number of rows. us: medians of ns. */
typedef struct width {
  int32_t rows;
  uint64_t op_ns[PROBE_COUNT][REPETITIONS_MAX], between_ns[REPETITIONS_MAX], whole_ns[REPETITIONS_MAX];
  double op_us[PROBE_COUNT];
  double op_limit_us[PROBE_COUNT]; /* 0: none that is known */
  double between_us;               /* what is in no op */
  double whole_us;                 /* without the probe */
} width;

typedef struct bench {
  flags flags;
  bool queued; /* the device computes by itself, what it has been given by `end` */
  /* Bytes, and multiply-adds of bytes and of floats, per second; the last two 0: not measured. */
  double read_rate, multiply_rate, float_rate;
  const char *instruction;
  width widths[WIDTHS_MAX];
  step_bench step;
  probe probe;
} bench;

/* --- flags --- */

static int take_rows(void *context, const char *one, err *e) {
  flags *f = context;
  int64_t rows;
  int rc = program_int("--rows", one, 1, STEP_ROWS_MAX, &rows, e);
  if (rc == ERR_OK) f->widths[f->width_count++] = (int32_t)rows;
  return rc;
}

static int take_own(void *context, flag_id id, const char *text, err *e) {
  (void)id; /* --rows is the only one */
  ((flags *)context)->width_count = 0;
  return command_list("--rows", text, WIDTHS_MAX, take_rows, context, e);
}

static int check_whole(void *context, err *e) {
  return command_needs_model(&((const flags *)context)->given, e);
}

/* --- measuring --- */

static int compare_ns(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static double median_us(uint64_t *ns, int32_t count) {
  qsort(ns, (size_t)count, sizeof *ns, compare_ns);
  uint64_t twice = ns[(count - 1) / 2] + ns[count / 2];
  return (double)twice / 2e3;
}

static bool measure_machine(bench *b) {
  device *d = model_device(b->step.model);
  b->queued = d->table->read_rate != NULL;
  if (b->queued) {
    b->read_rate = d->table->read_rate(d);
    return b->read_rate > 0;
  }
  const int32_t threads = b->flags.given.threads, passes = b->flags.given.repetitions;
  const char *of_floats;
  b->read_rate = limits_read_rate(threads, passes);
  b->multiply_rate = limits_multiply_rate(LIMITS_BYTES, threads, passes, &b->instruction);
  b->float_rate = limits_multiply_rate(LIMITS_FLOATS, threads, passes, &of_floats);
  return b->read_rate > 0 && b->multiply_rate > 0 && b->float_rate > 0;
}

static double limit_us(const bench *b, probe_op op, int32_t rows) {
  const bool attends = op == PROBE_ATTENTION;
  const double bytes = (double)(attends ? step_kv_bytes(&b->step) : b->probe.bytes[op]);
  const double reading = bytes / b->read_rate;
  double multiplying = 0;
  if (!b->queued)
    multiplying = attends ? (double)step_attention_macs(&b->step, rows) / b->float_rate
                          : (double)b->probe.macs[op] / (ARITHMETIC_SHARE * b->multiply_rate);
  return 1e6 * (reading > multiplying ? reading : multiplying);
}

/* One step with the probe, one without: its own cost is not in the whole. */
static int measure_once(bench *b, width *w, int32_t at) {
  const step_item item = {STEP_CHAIN, w->rows};
  uint64_t ns;
  probe_attach(&b->probe, model_device(b->step.model));
  int rc = step_run(&b->step, item, &ns);
  probe_detach(&b->probe);
  for (int i = 0; i < PROBE_COUNT; i++) {
    w->op_ns[i][at] = b->probe.ns[i];
    w->op_limit_us[i] = limit_us(b, (probe_op)i, w->rows);
    ns -= b->probe.ns[i];
  }
  w->between_ns[at] = ns;
  return rc == ERR_OK ? step_run(&b->step, item, &w->whole_ns[at]) : rc;
}

static void take_medians(width *w, int32_t count) {
  for (int i = 0; i < PROBE_COUNT; i++) w->op_us[i] = median_us(w->op_ns[i], count);
  w->between_us = median_us(w->between_ns, count);
  w->whole_us = median_us(w->whole_ns, count);
}

/* --- measuring a device that queues: steps of one op alone --- */

/* What the device takes for a step of so many rows of which nothing runs but this op and the rope's angles.
 */
static int measure_only(bench *b, int32_t rows, probe_op op, uint64_t *ns) {
  uint64_t whole;
  probe_attach(&b->probe, model_device(b->step.model));
  probe_only(&b->probe, op);
  int rc = step_run(&b->step, (step_item){STEP_CHAIN, rows}, &whole);
  probe_detach(&b->probe);
  *ns = 1000 * model_device_us(b->step.model);
  return rc;
}

/* All of an op's steps one after the other: the first one takes longer, where the device makes its graph. */
static int measure_op(bench *b, width *w, probe_op op, uint64_t *ns) {
  const int32_t count = b->flags.given.repetitions;
  int rc = ERR_OK;
  for (int32_t at = -WARM_UP; at < count && rc == ERR_OK; at++)
    rc = measure_only(b, w->rows, op, &ns[at < 0 ? 0 : at]);
  if (op < PROBE_COUNT) w->op_limit_us[op] = limit_us(b, op, w->rows);
  return rc;
}

static int measure_whole(bench *b, width *w) {
  int rc = ERR_OK;
  for (int32_t at = -WARM_UP; at < b->flags.given.repetitions && rc == ERR_OK; at++)
    rc = step_run(&b->step, (step_item){STEP_CHAIN, w->rows}, &w->whole_ns[at < 0 ? 0 : at]);
  return rc;
}

static int measure_queued(bench *b, width *w) {
  static const probe_op ops[] = {PROBE_EMBED,   PROBE_QKV,  PROBE_ATTENTION, PROBE_OUTPUT,
                                 PROBE_GATE_UP, PROBE_DOWN, PROBE_HEAD};
  const int32_t count = b->flags.given.repetitions;
  uint64_t nothing_ns[REPETITIONS_MAX] = {0};
  int rc = measure_whole(b, w);
  if (rc == ERR_OK) rc = measure_op(b, w, PROBE_COUNT, nothing_ns);
  const double nothing = median_us(nothing_ns, count);
  w->whole_us = w->between_us = median_us(w->whole_ns, count);
  for (size_t i = 0; i < sizeof ops / sizeof *ops && rc == ERR_OK; i++) {
    rc = measure_op(b, w, ops[i], w->op_ns[ops[i]]);
    const double us = median_us(w->op_ns[ops[i]], count) - nothing;
    w->op_us[ops[i]] = us > 0 ? us : 0;
    w->between_us -= w->op_us[ops[i]];
  }
  return rc;
}

/* --- measuring all widths --- */

/* The widths take turns, so that what else runs on the machine meets all of them alike. */
static int measure_in_turns(bench *b) {
  const flags *f = &b->flags;
  int rc = ERR_OK;
  for (int32_t at = -WARM_UP; at < f->given.repetitions; at++)
    for (int32_t i = 0; i < f->width_count && rc == ERR_OK; i++)
      rc = measure_once(b, &b->widths[i], at < 0 ? 0 : at);
  for (int32_t i = 0; i < f->width_count && rc == ERR_OK; i++)
    take_medians(&b->widths[i], f->given.repetitions);
  return rc;
}

static int measure(bench *b) {
  int rc = ERR_OK;
  for (int32_t i = 0; i < b->flags.width_count; i++) b->widths[i].rows = b->flags.widths[i];
  if (!b->queued) return measure_in_turns(b);
  for (int32_t i = 0; i < b->flags.width_count && rc == ERR_OK; i++) rc = measure_queued(b, &b->widths[i]);
  return rc;
}

/* --- telling --- */

static double sum_us(const double *us) {
  double sum = 0;
  for (int i = 0; i < PROBE_COUNT; i++) sum += us[i];
  return sum;
}

static const char *file_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static bool ever_ran(const bench *b, int op) {
  for (int32_t i = 0; i < b->flags.width_count; i++)
    if (b->widths[i].op_us[op] > 0) return true;
  return false;
}

static void print_cell(double us, double limit) {
  if (limit > 0)
    printf("  %8.0f %8.0f %5.2f", us, limit, us / limit);
  else
    printf("  %8.0f %8s %5s", us, "-", "-");
}

static void print_head(const bench *b) {
  const flags *f = &b->flags;
  const model_config *c = model_shape(b->step.model);
  printf("model    %s: %d layers of %d, vocabulary %d; %s\n", file_name(f->given.model), c->layers, c->embed,
         c->vocab, model_numerics(b->step.model, KV_F16));
  if (b->queued)
    printf("machine  %s reads its memory at %.0f GB/s\n", f->given.device, b->read_rate / 1e9);
  else
    printf("machine  %d threads read memory at %.1f GB/s and multiply at %.0f GMAC/s (%s), floats at %.0f\n",
           f->given.threads, b->read_rate / 1e9, b->multiply_rate / 1e9, b->instruction, b->float_rate / 1e9);
  printf("step     after %d tokens, weights of %.1f MB, medians of %d; us, the least that is possible, and "
         "their "
         "ratio\n\n%-18s",
         f->given.context, (double)step_weight_bytes(&b->step) / 1e6, f->given.repetitions, "rows");
  for (int32_t i = 0; i < f->width_count; i++) printf("  %8d %8s %5s", b->widths[i].rows, "least", "x");
  printf("\n%-18s", "kernels");
  for (int32_t i = 0; i < f->width_count; i++)
    printf("  %23s", model_variant(b->step.model, b->widths[i].rows));
  printf("\n");
}

/* Between the ops: building the batch, the graph, and the probe's own clock. */
static void print_table(const bench *b) {
  int32_t n = b->flags.width_count;
  print_head(b);
  for (int op = 0; op < PROBE_COUNT; op++) {
    if (!ever_ran(b, op)) continue;
    printf("%-18s", probe_name((probe_op)op));
    for (int32_t i = 0; i < n; i++) print_cell(b->widths[i].op_us[op], b->widths[i].op_limit_us[op]);
    printf("\n");
  }
  printf("%-18s", "between them");
  for (int32_t i = 0; i < n; i++) print_cell(b->widths[i].between_us, 0);
  printf("\n%-18s", "whole step");
  for (int32_t i = 0; i < n; i++) print_cell(b->widths[i].whole_us, sum_us(b->widths[i].op_limit_us));
  printf("\n");
}

static void print_json_string(const char *text) {
  putchar('"');
  for (; *text; text++) {
    unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\')
      printf("\\%c", c);
    else if (c < ' ')
      printf("\\u%04x", c);
    else
      putchar(c);
  }
  putchar('"');
}

static void print_json_width(const bench *b, const width *w) {
  printf("{\"rows\": %d, \"kernels\": \"%s\", \"us\": %.1f, \"least_us\": %.1f, \"between_us\": %.1f, "
         "\"ops\": [",
         w->rows, model_variant(b->step.model, w->rows), w->whole_us, sum_us(w->op_limit_us), w->between_us);
  const char *comma = "";
  for (int op = 0; op < PROBE_COUNT; op++) {
    if (!ever_ran(b, op)) continue;
    printf("%s{\"op\": \"%s\", \"us\": %.1f, \"least_us\": %.1f}", comma, probe_name((probe_op)op),
           w->op_us[op], w->op_limit_us[op]);
    comma = ", ";
  }
  printf("]}");
}

static void print_json(const bench *b) {
  printf("{\"model\": ");
  print_json_string(file_name(b->flags.given.model));
  printf(", \"numerics\": \"%s\", \"device\": \"%s\", \"threads\": %d, \"context\": %d, \"repetitions\": %d, "
         "\"read_gb_s\": %.2f, ",
         model_numerics(b->step.model, KV_F16), b->flags.given.device, b->flags.given.threads,
         b->flags.given.context, b->flags.given.repetitions, b->read_rate / 1e9);
  if (!b->queued)
    printf("\"multiply_gmac_s\": %.1f, \"instruction\": \"%s\", \"float_gmac_s\": %.1f, ",
           b->multiply_rate / 1e9, b->instruction, b->float_rate / 1e9);
  printf("\"weight_bytes\": %llu, \"steps\": [", (unsigned long long)step_weight_bytes(&b->step));
  for (int32_t i = 0; i < b->flags.width_count; i++) {
    if (i) printf(", ");
    print_json_width(b, &b->widths[i]);
  }
  printf("]}\n");
}

/* --- the program --- */

static int run_step(bench *b) {
  err e = {0};
  int rc = step_open(&b->step, b->flags.given.model, b->flags.given.device, b->flags.given.math,
                     b->flags.given.threads, b->flags.given.context, STEP_STATIC, NULL, 0, &e);
  if (rc != ERR_OK) return command_fail(program_exit_of_file(rc), e.text);
  if (!measure_machine(b))
    return command_fail(STATUS_FAILED, "no memory or threads to measure the machine with");
  rc = measure(b);
  if (rc == ERR_FORMAT)
    return command_fail(STATUS_FAILED, "the model's outputs are no numbers: is the file whole?");
  if (rc != ERR_OK) return command_fail(STATUS_FAILED, err_name(rc));
  if (b->flags.given.json)
    print_json(b);
  else
    print_table(b);
  return fflush(stdout) == 0 ? STATUS_OK : command_fail(STATUS_FAILED, "cannot write to stdout");
}

static int bench_step(int argc, char **argv) {
  bench *b = calloc(1, sizeof *b);
  if (!b) return command_fail(STATUS_FAILED, "out of memory");
  b->flags = (flags){.given = flag_defaults, .widths = {1, 4, 8, 16}, .width_count = 4};
  b->flags.given.device = "cpu";
  b->flags.given.threads = cpus_threads();
  b->flags.given.context = CONTEXT_DEFAULT;
  const flag_program reader = {.command = COMMAND_BENCH_STEP,
                               .values = &b->flags.given,
                               .context = &b->flags,
                               .own = take_own,
                               .whole = check_whole};
  flag_read_all(&reader, argc, argv);
  int status = run_step(b);
  step_close(&b->step);
  free(b);
  return status;
}

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
} commands[] = {{"step", bench_step}, {"kv", kv_command}, {"serve", bench_serve}};

static int print_usage(const char *name) {
  printf("Usage: %s step -m FILE [FLAGS...]: where the time of one step of a model goes on this machine\n"
         "   or: %s kv -m FILE [FLAGS...]: what committing accepted rows takes, in three ways\n"
         "   or: %s serve URL PROMPTS.jsonl [FLAGS...]: a load on a server that speaks OpenAI's API\n"
         "   or: tandem bench spec PROMPTS.jsonl -m FILE [FLAGS...]: what speculation is worth\n",
         name, name, name);
  return STATUS_OK;
}

static int refuse(const char *name, const char *word) {
  if (word)
    fprintf(stderr, "%s: there is no '%s' to measure, only step, kv, serve and spec (%s --help)\n", name,
            word, name);
  else
    fprintf(stderr, "%s: what is to be measured? %s step, kv, serve or spec (%s --help)\n", name, name, name);
  return STATUS_USAGE;
}

static bool is_either(const char *word, const char *one, const char *other) {
  return strcmp(word, one) == 0 || strcmp(word, other) == 0;
}

int main(int argc, char **argv) {
  const char *name = argc > 0 ? file_name(argv[0]) : "tandem-bench";
  program_begin("tandem-bench");
  flag_variables_check("tandem-bench");
  if (argc < 2) return refuse(name, NULL);
  if (is_either(argv[1], "--help", "-h")) return print_usage(name);
  if (is_either(argv[1], "--version", "-V")) {
    printf("tandem-bench %s (%s)\n", TANDEM_VERSION, TANDEM_COMMIT);
    return STATUS_OK;
  }
  for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
    if (strcmp(argv[1], commands[i].name) != 0) continue;
    char whole[64];
    snprintf(whole, sizeof whole, "%s %s", name, argv[1]);
    argv[1] = whole;
    return commands[i].run(argc - 1, argv + 1);
  }
  return refuse(name, argv[1]);
}
