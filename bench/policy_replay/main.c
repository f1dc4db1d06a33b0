/* policy_replay - what the policy of speculation makes of recorded answers, without a machine's noise.
 *
 *   policy_replay FILE [--only TEXT] [--each] [--every N]
 *   policy_replay --steps FILE [--each]
 *
 * FILE is what `tandem batch --draft none` wrote. Each row of the table plays the answers once plainly and
 * once with a draft, under a virtual clock (world.h), and prints how many times as fast the second was:
 * over all answers, and of the answer that came off worst. --only: the rows whose name contains TEXT.
 * --every: each N-th answer alone. --each: a line for each answer.
 *
 * With --steps FILE is what `tandem-target --record-steps` wrote, or any program that it is started by with
 * TANDEM_RECORD_STEPS=FILE: the draft offers what it offered then, and rows cost what they did. */
#include "bench/policy_replay/steps.h"
#include "bench/policy_replay/world.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWERS_MAX 512
#define KV_COST     0.18 /* plain steps of a row that reads 1,000 positions, measured as AVX512 */
#define KV_COST_GPU 0.05 /* as H200: 0.38 for a forward, which 8 rows of a session share */

/* Plain steps by rows of a forward. The first is measured with `tandem bench step` on an AMD EPYC (Zen 5)
 * with 2 threads and the default model in Q4_1; the second is like it without AVX-512; the third is like a
 * GPU. The last was measured on an H200: a forward costs there what the widest one of its step costs, so each
 * cost holds for all rows since the one before. */
#define AVX512 "1:1,2:1.05,3:1.06,4:1.12,5:1.18,6:1.25,8:1.43,10:1.66,12:1.92,16:2.45,24:3.6,32:4.6"
#define AVX2   "1:1,2:1.2,3:1.45,4:1.7,6:2.2,8:2.75,12:3.9,16:5,32:9.6"
#define GPU    "1:1,16:1.02,32:1.15,64:1.5,128:2.4"
#define STEPS  "steps "
#define H200   STEPS "1:1,2:1.08,4:1.24,8:1.55,16:2.33,32:2.45,64:4.2,128:8"

/* As H200 after 30,000 tokens: what a row reads is part of its cost */
#define LONG STEPS "1:1,2:1.2,4:1.45,8:1.9,16:2.8,32:4.7"

#define ALWAYS 1000000

/* clang-format off */
#define REPLAY(right)         {RECORDED_REPLAY, right, 0, ALWAYS, -1, 0, false}
#define CLAIMS(right, claims) {RECORDED_REPLAY, right, 0, ALWAYS, claims, 0, false}
#define CHANGES(right, later, claims) {RECORDED_REPLAY, right, later, 80, claims, 0, false}
#define NGRAM                 {.kind = RECORDED_NGRAM}
#define MODEL(right, claims, forward, colocated) \
  {RECORDED_MODEL, right, 0, ALWAYS, claims, forward, colocated}

static const struct row {
  const char *name, *costs;
  int32_t sessions, max_tokens;
  bool kept;
  uint64_t distance_us;
  recorded_draft draft;
} rows[] = {
  {"replay 0", AVX512, 1, 160, true, 0, REPLAY(0)},
  {"replay 0.3", AVX512, 1, 160, true, 0, REPLAY(.3)},
  {"replay 0.5", AVX512, 1, 160, true, 0, REPLAY(.5)},
  {"replay 0.8", AVX512, 1, 160, true, 0, REPLAY(.8)},
  {"replay 1", AVX512, 1, 160, true, 0, REPLAY(1)},
  {"replay 0 that claims 0.8", AVX512, 1, 160, true, 0, CLAIMS(0, .8)},
  {"replay 0.2 that claims 0.6", AVX512, 1, 160, true, 0, CLAIMS(.2, .6)},
  {"replay 0.9, then 0", AVX512, 1, 160, true, 0, CHANGES(.9, 0, -1)},
  {"replay 0, then 0.9", AVX512, 1, 160, true, 0, CHANGES(0, .9, .9)},
  {"prompt lookup", AVX512, 1, 160, true, 0, NGRAM},
  {"prompt lookup, a start each", AVX512, 1, 160, false, 0, NGRAM},
  {"prompt lookup, 12 tokens", AVX512, 1, 12, false, 0, NGRAM},
  {"prompt lookup, 8 sessions", AVX512, 8, 160, true, 0, NGRAM},
  {"8 sessions, replay 0", AVX512, 8, 160, true, 0, REPLAY(0)},
  {"8 sessions, replay 0.8", AVX512, 8, 160, true, 0, REPLAY(.8)},
  {"replay 0.8, 20 ms away", AVX512, 1, 160, true, 20000, REPLAY(.8)},
  {"prompt lookup, 20 ms away", AVX512, 1, 160, true, 20000, NGRAM},
  {"good model, colocated", AVX512, 1, 160, true, 0, MODEL(.84, -1, .27, true)},
  {"good small model, colocated", AVX512, 1, 160, true, 0, MODEL(.8, -1, .1, true)},
  {"bad model, colocated", AVX512, 1, 160, true, 0, MODEL(.03, .6, .37, true)},
  {"bad model, colocated, a start each", AVX512, 1, 96, false, 0, MODEL(.03, .6, .37, true)},
  {"good small model, colocated, 8 sessions", AVX512, 8, 160, true, 0, MODEL(.8, -1, .1, true)},
  {"bad model, colocated, 8 sessions", AVX512, 8, 160, true, 0, MODEL(.03, .6, .37, true)},
  {"good model, own core", AVX512, 1, 160, true, 0, MODEL(.84, -1, .27, false)},
  {"bad model, own core", AVX512, 1, 160, true, 0, MODEL(.03, .6, .37, false)},
  {"AVX2: replay 0", AVX2, 1, 160, true, 0, REPLAY(0)},
  {"AVX2: replay 0 that claims 0.8", AVX2, 1, 160, true, 0, CLAIMS(0, .8)},
  {"AVX2: replay 0.5", AVX2, 1, 160, true, 0, REPLAY(.5)},
  {"AVX2: replay 0.8", AVX2, 1, 160, true, 0, REPLAY(.8)},
  {"AVX2: prompt lookup", AVX2, 1, 160, true, 0, NGRAM},
  {"AVX2: prompt lookup, 12 tokens", AVX2, 1, 12, false, 0, NGRAM},
  {"GPU: replay 0", GPU, 1, 160, true, 0, REPLAY(0)},
  {"GPU: replay 0.8", GPU, 1, 160, true, 0, REPLAY(.8)},
  {"GPU: prompt lookup", GPU, 1, 160, true, 0, NGRAM},
  {"H200: replay 0", H200, 1, 160, true, 0, REPLAY(0)},
  {"H200: replay 0.8", H200, 1, 160, true, 0, REPLAY(.8)},
  {"H200: prompt lookup", H200, 1, 160, true, 0, NGRAM},
  {"H200, 30,000 tokens: replay 0", LONG, 1, 160, true, 0, REPLAY(0)},
  {"H200, 30,000 tokens: replay 0.8", LONG, 1, 160, true, 0, REPLAY(.8)},
  {"H200, 30,000 tokens: replay 0, then 0.9", LONG, 1, 160, true, 0, CHANGES(0, .9, .9)},
  {"H200, 30,000 tokens: prompt lookup", LONG, 1, 160, true, 0, NGRAM},
  {"H200, 30,000 tokens: lookup, a start each", LONG, 1, 160, false, 0, NGRAM},
  {"H200: eight sessions, replay 0.8", H200, 8, 160, true, 0, REPLAY(.8)},
};
/* clang-format on */

typedef struct figures { /* of one row */
  double over, worst, tokens_per_verify, verifies, waited;
  double frames; /* messages a token, more than plainly */
} figures;

static bool read_answer(const char *line, recording *x) {
  json_t *o = json_loads(line, 0, NULL);
  const json_t *parts[] = {json_object_get(o, "prompt_ids"), json_object_get(o, "token_ids")};
  size_t prompt = json_array_size(parts[0]), output = json_array_size(parts[1]), n = 0;
  bool right = prompt > 0 && output > 0 && prompt + output <= WORLD_CONTEXT;
  *x = (recording){.prompt_length = (int32_t)prompt, .length = (int32_t)(prompt + output)};
  x->tokens = right ? malloc((prompt + output) * sizeof *x->tokens) : NULL;
  for (int k = 0; x->tokens && k < 2; k++)
    for (size_t i = 0; i < json_array_size(parts[k]); i++)
      x->tokens[n++] = (int32_t)json_integer_value(json_array_get(parts[k], i));
  json_decref(o);
  return x->tokens;
}

static int32_t read_answers(const char *path, int32_t every, recording *list) {
  FILE *file = fopen(path, "r");
  char *line = NULL;
  size_t room = 0;
  int32_t count = 0;
  for (int32_t i = 0; file && count < ANSWERS_MAX && getline(&line, &room, file) > 0; i++)
    if (i % every == 0) count += read_answer(line, &list[count]);
  free(line);
  if (file) fclose(file);
  return count;
}

static bool in_steps(const char *costs) {
  return strncmp(costs, STEPS, strlen(STEPS)) == 0;
}

/* ROWS:COST,...; beyond the last point as up to it. */
static void read_costs(const char *text, double *costs) {
  int32_t at = 1, count;
  double cost, before = 1, slope = 0;
  bool steps = in_steps(text);
  if (steps) text += strlen(STEPS);
  for (int used; sscanf(text, "%d:%lf%n", &count, &cost, &used) == 2; before = cost) {
    slope = count > at ? (cost - before) / (count - at) : 0;
    for (int32_t i = at + (count > at && steps); i <= count; i++)
      costs[i] = steps ? cost : cost - slope * (count - i);
    at = count;
    text += used;
    if (*text++ != ',') break;
  }
  for (int32_t i = at + 1; i <= WORLD_ROWS_MAX; i++) costs[i] = costs[i - 1] + slope;
}

static figures compare(const world_answer *plain, const world_answer *drafted, int32_t count,
                       const world_totals totals[2], bool alone, bool each) {
  figures f = {.worst = 1e9};
  double us[2] = {0, 0}, tokens = 0, verifies = 0, accepted = 0, waited = 0;
  for (int32_t i = 0; i < count; i++) {
    const msg_stats *s = &drafted[i].stats;
    double over = drafted[i].us > 0 ? plain[i].us / drafted[i].us : 1;
    us[0] += plain[i].us;
    us[1] += drafted[i].us;
    tokens += drafted[i].tokens;
    verifies += (double)s->rounds;
    accepted += (double)s->accepted;
    waited += (double)s->wait_us;
    if (over < f.worst) f.worst = over;
    if (each)
      printf("  %d: %d tokens, %.3f, %d verifies of %d nodes, %d accepted, waited %d us\n", i,
             drafted[i].tokens, over, (int)s->rounds, (int)s->rows, (int)s->accepted, (int)s->wait_us);
  }
  f.over = alone ? us[0] / us[1] : totals[0].span_us / totals[1].span_us;
  f.tokens_per_verify = verifies > 0 ? 1 + accepted / verifies : 1;
  f.verifies = verifies / tokens;
  f.waited = waited / us[1];
  f.frames = ((double)totals[1].frames - (double)totals[0].frames) / tokens;
  return f;
}

static void play_row(const struct row *r, const recording *list, int32_t count, bool each) {
  static world_answer answers[2][ANSWERS_MAX];
  static world_options o;
  world_totals totals[2];
  o = (world_options){.kv_cost = in_steps(r->costs) ? KV_COST_GPU : KV_COST,
                      .sessions = r->sessions,
                      .max_tokens = r->max_tokens,
                      .stop = 2,
                      .kept = r->kept,
                      .distance_us = r->distance_us,
                      .drafts = r->draft};
  read_costs(r->costs, o.costs);
  for (int k = 0; k < 2; k++) {
    o.draft = k == 1;
    world_play(&o, list, count, answers[k], &totals[k]);
  }
  figures f = compare(answers[0], answers[1], count, totals, r->sessions == 1, each);
  printf("| %-36s | %5.3f | %5.3f | %5.2f | %5.3f | %5.2f %% | %4.1f |\n", r->name, f.over, f.worst,
         f.tokens_per_verify, f.verifies, 100 * f.waited, f.frames);
  fflush(stdout);
}

int main(int argc, char **argv) {
  static recording list[ANSWERS_MAX];
  const char *only = "", *path = NULL, *recorded = NULL;
  bool each = false, right = true;
  int32_t every = 1;
  struct row steps = {"recorded steps", AVX512, 1, WORLD_CONTEXT, true, 0, {.kind = RECORDED_STEPS}};
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--each") == 0)
      each = true;
    else if (i + 1 < argc && strcmp(argv[i], "--only") == 0)
      only = argv[++i];
    else if (i + 1 < argc && strcmp(argv[i], "--steps") == 0)
      recorded = argv[++i];
    else if (i + 1 < argc && strcmp(argv[i], "--every") == 0)
      every = atoi(argv[++i]);
    else if (path)
      right = false;
    else
      path = argv[i];
  }
  static char costs[1024];
  int32_t count = 0;
  if (right && recorded && !path) count = steps_read(recorded, list, ANSWERS_MAX, costs, sizeof costs);
  if (right && path && !recorded && every > 0) count = read_answers(path, every, list);
  if (count == 0) {
    fprintf(stderr, "usage: policy_replay --steps FILE | FILE [--only TEXT] [--every N] [--each], with FILE "
                    "as `tandem batch "
                    "--draft none' writes it\n");
    return 2;
  }
  printf("| %-36s | over plain | worst | tokens a verify | verifies a token | waited | messages a token |\n"
         "| --- | --- | --- | --- | --- | --- | --- |\n",
         "row");
  if (costs[0]) steps.costs = costs;
  if (recorded) play_row(&steps, list, count, each);
  for (size_t i = 0; !recorded && i < sizeof rows / sizeof *rows; i++)
    if (strstr(rows[i].name, only)) play_row(&rows[i], list, count, each);
  return 0;
}
