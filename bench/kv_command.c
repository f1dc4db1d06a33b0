#include "bench/kv_command.h"

#include "bench/command_flags.h"
#include "bench/commit_policy.h"
#include "bench/timed_threads.h"
#include "common/base/cpus.h"
#include "common/base/program.h"
#include "common/base/rng.h"
#include "common/command_line/flag_reader.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZES_MAX       8
#define REPETITIONS_MAX TIMED_THREADS_PASSES_MAX
#define CONTEXT_DEFAULT 128

typedef struct flags {
  flag_values given;
  int32_t nodes[SIZES_MAX], node_count;
  double acceptance[SIZES_MAX];
  int32_t acceptance_count;
} flags;

/* One tree, in all ways. Sums over the repetitions, and their times. */
typedef struct measured {
  double accepted, committed_bytes[COMMIT_POLICIES], bytes[COMMIT_POLICIES];
  double us[COMMIT_POLICIES][REPETITIONS_MAX], over[COMMIT_POLICIES][REPETITIONS_MAX]; /* over staging's */
} measured;

typedef struct kv_bench {
  flags flags;
  step_bench step;
  measured measured;
  FILE *out; /* stdout; for JSON, which is printed whole or not at all, a stream of memory */
  const char *comma;
} kv_bench;

/* What a case is. */
typedef struct tree_case {
  step_layout layout;
  commit_shape shape;
  int32_t nodes;
  double acceptance;
} tree_case;

static const char *const layout_names[] = {[STEP_STATIC] = "static", [STEP_SCATTERED] = "virtual"};

/* --- flags --- */

static int take_nodes(void *context, const char *one, err *e) {
  flags *f = context;
  int64_t nodes;
  int rc = program_int("--nodes", one, 1, COMMIT_NODES_MAX, &nodes, e);
  if (rc == ERR_OK) f->nodes[f->node_count++] = (int32_t)nodes;
  return rc;
}

static int take_acceptance(void *context, const char *one, err *e) {
  flags *f = context;
  char *end;
  const double share = strtod(one, &end);
  if (end == one || *end || !(share >= 0 && share <= 1))
    return err_set(e, ERR_ARG, "--acceptance takes numbers from 0 to 1, not '%s'", one);
  f->acceptance[f->acceptance_count++] = share;
  return ERR_OK;
}

static int take_own(void *context, flag_id id, const char *text, err *e) {
  flags *f = context;
  if (id == FLAG_tree_nodes) {
    f->node_count = 0;
    return command_list("--nodes", text, SIZES_MAX, take_nodes, f, e);
  }
  f->acceptance_count = 0;
  return command_list("--acceptance", text, SIZES_MAX, take_acceptance, f, e);
}

static int check_whole(void *context, err *e) {
  return command_needs_model(&((const flags *)context)->given, e);
}

/* --- measuring --- */

/* Nodes of the path that are accepted, each with this probability if those before it are: repetition i of the
 * same case always draws the same. */
static int32_t draw(const tree_case *c, int32_t i) {
  const int32_t depth = commit_depth(c->shape, c->nodes);
  int32_t accepted = 0;
  for (bool right = true; right && accepted < depth; accepted += right) {
    const uint32_t counter[4] = {(uint32_t)i, (uint32_t)accepted}, key[2] = {1, 0};
    right = (double)philox_unit(philox4x32(counter, key).lane[0]) < c->acceptance;
  }
  return accepted;
}

static int measure_policy(kv_bench *b, const tree_case *c, commit_policy policy, int32_t i) {
  const commit_round r = {policy, c->shape, c->nodes, draw(c, i)};
  measured *m = &b->measured;
  commit_cost cost;
  int rc = commit_play(&b->step, &r, &cost);
  if (rc == ERR_OK) rc = commit_play(&b->step, &r, &cost);
  if (rc != ERR_OK || i < 0) return rc;
  m->us[policy][i] = (double)cost.ns / 1e3;
  m->committed_bytes[policy] += (double)cost.committed_bytes;
  m->bytes[policy] += (double)cost.bytes;
  return ERR_OK;
}

/* The policies take turns, the first one another each time. Repetition -1 does not count. */
static int measure(kv_bench *b, const tree_case *c) {
  measured *m = &b->measured;
  int rc = ERR_OK;
  *m = (measured){0};
  for (int32_t i = -1; i < b->flags.given.repetitions && rc == ERR_OK; i++) {
    for (int32_t k = 0; k < COMMIT_POLICIES && rc == ERR_OK; k++) {
      const commit_policy policy = (commit_policy)((k + i + 1) % COMMIT_POLICIES);
      if (commit_is_possible(policy, c->shape)) rc = measure_policy(b, c, policy, i);
    }
    if (i < 0) continue;
    m->accepted += draw(c, i);
    for (int k = 0; k < COMMIT_POLICIES; k++) m->over[k][i] = m->us[k][i] / m->us[COMMIT_STAGING][i];
  }
  return rc;
}

/* --- telling --- */

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

typedef struct spread {
  double low, median, high; /* quartiles */
} spread;

static spread spread_of(double *of, int32_t count) {
  qsort(of, (size_t)count, sizeof *of, compare);
  return (spread){of[count / 4], (of[(count - 1) / 2] + of[count / 2]) / 2, of[count - 1 - count / 4]};
}

static void print_head(const kv_bench *b) {
  const flags *f = &b->flags;
  if (f->given.json) {
    fprintf(b->out,
            "{\"numerics\": \"%s\", \"device\": \"%s\", \"threads\": %d, \"context\": %d, "
            "\"repetitions\": %d, \"cases\": [",
            model_numerics(b->step.model, KV_F16), f->given.device, f->given.threads, f->given.context,
            f->given.repetitions);
    return;
  }
  fprintf(b->out,
          "%s on %s, after %d tokens, medians of %d rounds, quartiles in brackets; kB: written to committed "
          "rows, and in all\n\n",
          f->given.model, f->given.device, f->given.context, f->given.repetitions);
  fprintf(b->out, "%-8s %-5s %5s %10s %8s  %-14s %9s %9s %9s  %s\n", "layout", "shape", "nodes", "acceptance",
          "accepted", "policy", "kB", "all kB", "us", "over staging");
}

static void print_text(kv_bench *b, const tree_case *c, int k) {
  measured *m = &b->measured;
  const int32_t count = b->flags.given.repetitions;
  const spread us = spread_of(m->us[k], count), over = spread_of(m->over[k], count);
  fprintf(b->out, "%-8s %-5s %5d %10.2f %8.2f  %-14s %9.1f %9.1f %9.0f  %.3f [%.3f, %.3f]\n",
          layout_names[c->layout], commit_shape_names[c->shape], c->nodes, c->acceptance, m->accepted / count,
          commit_policy_names[k], m->committed_bytes[k] / count / 1e3, m->bytes[k] / count / 1e3, us.median,
          over.median, over.low, over.high);
}

static void print_json(kv_bench *b, const tree_case *c, int k) {
  measured *m = &b->measured;
  const int32_t count = b->flags.given.repetitions;
  const spread us = spread_of(m->us[k], count), over = spread_of(m->over[k], count);
  fprintf(b->out,
          "%s\n  {\"layout\": \"%s\", \"shape\": \"%s\", \"nodes\": %d, \"acceptance\": %g, "
          "\"accepted\": %.3f, \"policy\": \"%s\", \"committed_bytes\": %.0f, \"bytes\": %.0f, \"us\": %.1f, "
          "\"over_staging\": %.4f, \"over_staging_quartiles\": [%.4f, %.4f]}",
          b->comma, layout_names[c->layout], commit_shape_names[c->shape], c->nodes, c->acceptance,
          m->accepted / count, commit_policy_names[k], m->committed_bytes[k] / count, m->bytes[k] / count,
          us.median, over.median, over.low, over.high);
  b->comma = ",";
}

static void print_case(kv_bench *b, const tree_case *c) {
  for (int k = 0; k < COMMIT_POLICIES; k++)
    if (commit_is_possible((commit_policy)k, c->shape))
      (b->flags.given.json ? print_json : print_text)(b, c, k);
}

/* --- the program --- */

static int run_layout(kv_bench *b, step_layout layout, err *e) {
  const flags *f = &b->flags;
  int rc = step_open(&b->step, f->given.model, f->given.device, f->given.math, f->given.threads,
                     f->given.context, layout, NULL, 0, e);
  if (rc != ERR_OK) return rc;
  if (layout == STEP_STATIC) print_head(b);
  for (int32_t shape = 0; shape < COMMIT_SHAPES; shape++)
    for (int32_t i = 0; i < f->node_count; i++)
      for (int32_t k = 0; k < f->acceptance_count; k++) {
        const tree_case c = {layout, (commit_shape)shape, f->nodes[i], f->acceptance[k]};
        rc = measure(b, &c);
        if (rc == ERR_FORMAT) return err_set(e, rc, "the model's outputs are no numbers: is the file whole?");
        if (rc != ERR_OK) return err_set(e, rc, "a round of the model failed: %s", err_name(rc));
        print_case(b, &c);
      }
  return ERR_OK;
}

static int run_layouts(kv_bench *b) {
  err e = {0};
  int rc = ERR_OK;
  for (int layout = STEP_STATIC; layout <= STEP_SCATTERED && rc == ERR_OK; layout++) {
    rc = run_layout(b, (step_layout)layout, &e);
    step_close(&b->step);
    b->step = (step_bench){0};
  }
  return rc == ERR_OK ? STATUS_OK : command_fail(program_exit_of_file(rc), e.text);
}

static int run_json(kv_bench *b) {
  char *text = NULL;
  size_t size = 0;
  b->out = open_memstream(&text, &size);
  if (!b->out) return command_fail(STATUS_FAILED, "out of memory");
  int status = run_layouts(b);
  fprintf(b->out, "\n]}\n");
  if (fclose(b->out) != 0 && status == STATUS_OK) status = command_fail(STATUS_FAILED, "out of memory");
  if (status == STATUS_OK) fwrite(text, 1, size, stdout);
  free(text);
  return status;
}

static int run(kv_bench *b) {
  b->out = stdout;
  b->comma = "";
  const int status = b->flags.given.json ? run_json(b) : run_layouts(b);
  if (status != STATUS_OK) return status;
  const bool written = fflush(stdout) == 0 && !ferror(stdout);
  return written ? STATUS_OK : command_fail(STATUS_FAILED, "cannot write to stdout");
}

int kv_command(int argc, char **argv) {
  kv_bench *b = calloc(1, sizeof *b);
  if (!b) return command_fail(STATUS_FAILED, "out of memory");
  b->flags = (flags){.given = flag_defaults,
                     .nodes = {4, 16, 64},
                     .node_count = 3,
                     .acceptance = {0, 0.3, 0.7, 1},
                     .acceptance_count = 4};
  b->flags.given.device = "cpu";
  b->flags.given.threads = cpus_threads();
  b->flags.given.context = CONTEXT_DEFAULT;
  const flag_program reader = {.command = COMMAND_BENCH_KV,
                               .values = &b->flags.given,
                               .context = &b->flags,
                               .own = take_own,
                               .whole = check_whole};
  flag_read_all(&reader, argc, argv);
  const int status = run(b);
  free(b);
  return status;
}
