#include "orchestrator/cli/bench_trials.h"

#include "common/base/program.h"
#include "common/command_line/draft_methods.h"
#include "common/file/head_lookup.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHAIN             "chain"
#define TEMPERATURES_MAX  16
#define TEMPERATURE_BYTES 256

static int copy_list(char *to, size_t room, const char *name, const char *text, err *e) {
  if (strlen(text) >= room) return err_set(e, ERR_ARG, "%s is longer than %zu bytes", name, room - 1);
  strcpy(to, text);
  return ERR_OK;
}

/* ---- methods ---- */

/* What a method does not use is not given to it: -md may name the head of one, --draft-layers the layers of
 * another. */
static void use_method(flag_values *w, const char *method) {
  w->draft = method;
  if (!draft_methods_compute(method)) w->draft_model = NULL;
  if (!draft_methods_name(method, DRAFT_SUFFIX)) w->corpus = NULL;
  if (!draft_methods_name(method, DRAFT_MODEL))
    w->draft_layers = 0;
  else if (w->draft_model && head_lookup_is_head(w->draft_model))
    w->draft_model = NULL;
}

void bench_trials_settings(const bench_trial *t, flag_values *w) {
  use_method(w, t->method);
  w->candidates = t->size->chain ? 1 : 0;
}

static int check_method(const flags *f, char *name, err *e) {
  flag_values w = f->given;
  for (char *c = name; *c; c++)
    if (*c == '+') *c = ',';
  use_method(&w, name);
  w.methods = NULL;
  if (!w.corpus) w.from[FLAG_corpus] = FLAG_FROM_DEFAULT;
  err why = {0};
  int rc = flags_check_draft(&w, &why);
  return rc ? err_set(e, rc, "--methods: %s", why.text) : ERR_OK;
}

/* "ngram,model+ngram" are two methods, of which the second one joins two drafters. */
static int32_t read_methods(bench_trials *t, const flags *f, const char *methods[BENCH_METHODS_MAX], err *e) {
  int32_t count = 0;
  methods[0] = f->given.draft;
  if (strcmp(f->given.methods ? f->given.methods : f->given.draft, "none") == 0)
    return err_set(e, ERR_ARG, "none is what every draft is compared with: name others"), -1;
  if (!f->given.methods) return 1;
  if (copy_list(t->methods, sizeof t->methods, "--methods", f->given.methods, e)) return -1;
  for (char *at = t->methods, *name; (name = strsep(&at, ","));) {
    if (check_method(f, name, e)) return -1;
    if (count == BENCH_METHODS_MAX)
      return err_set(e, ERR_ARG, "--methods has more than %d", BENCH_METHODS_MAX), -1;
    methods[count++] = name;
  }
  return count;
}

/* ---- trees ---- */

/* "15": a tree of so many nodes; "chain5": a chain of five. */
static int read_size(bench_size *s, const char *text, err *e) {
  bool chain = strncmp(text, CHAIN, strlen(CHAIN)) == 0;
  int64_t nodes;
  if (program_int("--trees", text + (chain ? strlen(CHAIN) : 0), 1, WIRE_BUDGET_MAX, &nodes, e))
    return ERR_ARG;
  *s = (bench_size){.name = text, .lockstep = true, .budget = (int32_t)nodes, .chain = chain};
  return ERR_OK;
}

static int32_t read_sizes(bench_trials *t, const flags *f, err *e) {
  const request *r = &f->request;
  int32_t count = 0;
  t->sizes[0] = (bench_size){r->lockstep ? "lockstep" : "free", r->lockstep, r->budget, false};
  if (!f->given.trees) return 1;
  if (copy_list(t->trees, sizeof t->trees, "--trees", f->given.trees, e)) return -1;
  for (char *at = t->trees, *text; (text = strsep(&at, ","));) {
    if (count == BENCH_SIZES_MAX) return err_set(e, ERR_ARG, "--trees has more than %d", BENCH_SIZES_MAX), -1;
    if (read_size(&t->sizes[count++], text, e)) return -1;
  }
  return count;
}

/* ---- temperatures ---- */

static int read_temperature(float *out, const char *text, err *e) {
  char *end;
  *out = strtof(text, &end);
  if (end == text || *end || !(*out >= 0 && *out <= SAMPLER_TEMPERATURE_MAX))
    return err_set(e, ERR_ARG, "--temps: '%s' is no temperature from 0 to %g", text,
                   (double)SAMPLER_TEMPERATURE_MAX);
  return ERR_OK;
}

static int32_t read_temperatures(const flags *f, float list[TEMPERATURES_MAX], err *e) {
  char copy[TEMPERATURE_BYTES];
  int32_t count = 0;
  list[0] = f->request.sampling.temperature;
  if (!f->given.temperatures) return 1;
  if (copy_list(copy, sizeof copy, "--temps", f->given.temperatures, e)) return -1;
  for (char *at = copy, *text; (text = strsep(&at, ","));) {
    if (count == TEMPERATURES_MAX)
      return err_set(e, ERR_ARG, "--temps has more than %d", TEMPERATURES_MAX), -1;
    if (read_temperature(&list[count++], text, e)) return -1;
  }
  return count;
}

/* ---- all of them ---- */

int bench_trials_read(bench_trials *t, const flags *f, err *e) {
  const char *methods[BENCH_METHODS_MAX];
  float temperatures[TEMPERATURES_MAX];
  *t = (bench_trials){.count = 0};
  int32_t m = read_methods(t, f, methods, e), s = m < 0 ? -1 : read_sizes(t, f, e);
  int32_t k = s < 0 ? -1 : read_temperatures(f, temperatures, e);
  if (k < 0) return ERR_ARG;
  if (m * s * k > BENCH_TRIALS_MAX)
    return err_set(e, ERR_ARG, "%d methods, %d trees and %d temperatures make more than %d trials", m, s, k,
                   BENCH_TRIALS_MAX);
  for (int32_t i = 0; i < m * s * k; i++)
    t->list[t->count++] = (bench_trial){methods[i / (s * k)], &t->sizes[i / k % s], temperatures[i % k]};
  return ERR_OK;
}
