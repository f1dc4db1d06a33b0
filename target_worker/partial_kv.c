#include "target_worker/partial_kv.h"

#include "common/base/clock.h"
#include "common/base/min.h"
#include "common/speculative/average.h"
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHAINS_MAX   64
#define GUESS_FIRST  8   /* tokens, of a chain that is tried */
#define REST         128 /* passes, after it was seen that no chain pays */
#define PLAIN_FIRST  2   /* passes, which are measured before the first chain */
#define RIGHT_FIRST  0.9
#define FORGET_AFTER 64 /* guesses: what was right before counts half */

typedef struct partial_slot {
  int32_t view; /* of the cache */
  uint64_t session;
  int32_t rows; /* that were weighed; 0: none were */
  float *mass;  /* [blocks of a context] */
  /* Of the last guesses: how many were looked at, and how many of these were right. */
  double looked, right;
  int32_t rest; /* so many passes, this one included, are plain */
} partial_slot;

struct partial_kv {
  partial_options options;
  model *model;
  kv_cache *kv;
  int32_t slot_count, blocks; /* blocks: of a context */
  partial_slot *slots;
  float *masses, *room; /* [slots][blocks]; [blocks] */
  int32_t *shown;       /* [blocks] */
  /* Microseconds of a guess, of a plain pass, and of one that weighs and checks guesses, however many. */
  average guess_us, plain_us, check_us;
  partial_counters counters;
};

/* --- which blocks --- */

static int compare_floats(const void *a, const void *b) {
  const float x = *(const float *)a, y = *(const float *)b;
  return (x < y) - (x > y); /* the largest first */
}

int32_t partial_choose(const partial_options *o, const float *mass, int32_t rows, float *room, int32_t *to) {
  const int32_t blocks = (rows + KV_BLOCK - 1) / KV_BLOCK, first = min_i32(o->sink, blocks),
                end = blocks - o->window > first ? blocks - o->window : first,
                taken = min_i32(o->retrieval, end - first);
  float least = INFINITY;
  int32_t equal = 0, count = 0;
  if (taken > 0) {
    memcpy(room, mass + first, (size_t)(end - first) * sizeof *room);
    qsort(room, (size_t)(end - first), sizeof *room, compare_floats);
    least = room[taken - 1];
  }
  for (int32_t i = 0; i < taken; i++) equal += room[i] == least;
  for (int32_t b = 0; b < blocks; b++) {
    const bool own = b < first || b >= end;
    if (own || mass[b] > least || (mass[b] == least && equal-- > 0)) to[count++] = b;
  }
  return count;
}

/* --- opening --- */

static int take(partial_kv *p, err *e) {
  const size_t slots = (size_t)p->slot_count, blocks = (size_t)p->blocks;
  p->slots = calloc(slots, sizeof *p->slots);
  p->masses = calloc(slots * blocks, sizeof *p->masses);
  p->room = calloc(blocks, sizeof *p->room);
  p->shown = calloc(blocks, sizeof *p->shown);
  if (!p->slots || !p->masses || !p->room || !p->shown || model_weigh(p->model, p->kv) != ERR_OK)
    return err_set(e, ERR_NOMEM, "no memory for partial KV: start without --partial-kv");
  for (int32_t i = 0; i < p->slot_count; i++) {
    p->slots[i] = (partial_slot){.view = kv_acquire_view(p->kv), .mass = p->masses + (size_t)i * blocks};
    if (p->slots[i].view < 0) return err_set(e, ERR_FULL, "the cache has no %d free views", p->slot_count);
  }
  return ERR_OK;
}

int partial_kv_open(partial_kv **out, const partial_options *o, model *m, kv_cache *kv, int32_t slots,
                    int32_t context, err *e) {
  *out = NULL;
  partial_kv *p = calloc(1, sizeof *p);
  if (!p) return err_set(e, ERR_NOMEM, "no memory for partial KV");
  *p = (partial_kv){.options = *o,
                    .model = m,
                    .kv = kv,
                    .slot_count = slots,
                    .blocks = (context + KV_BLOCK - 1) / KV_BLOCK};
  int rc = take(p, e);
  if (rc == ERR_OK)
    *out = p;
  else
    partial_kv_close(p);
  return rc;
}

void partial_kv_close(partial_kv *p) {
  if (!p) return;
  for (int32_t i = 0; p->slots && i < p->slot_count; i++)
    if (p->slots[i].mass && p->slots[i].view >= 0) kv_release(p->kv, p->slots[i].view);
  free(p->slots);
  free(p->masses);
  free(p->room);
  free(p->shown);
  free(p);
}

/* --- how many --- */

/* The chain that gives the most tokens a microsecond, where each guess is right with this probability if
 * those before it are. 0: a plain pass gives more. */
static int32_t best_length(const partial_kv *p, double right, int32_t most) {
  double tokens = 1, share = 1, best = 1 / p->plain_us.mean;
  int32_t length = 0;
  for (int32_t n = 1; n <= most; n++) {
    share *= right;
    tokens += share;
    const double speed = tokens / (p->check_us.mean + n * p->guess_us.mean);
    if (speed > best) best = speed, length = n;
  }
  return length;
}

/* For a slot that was weighed. */
static int32_t worth_of(const partial_kv *p, const partial_slot *s, int32_t most) {
  if (p->options.rows > 0) return min_i32(p->options.rows, most);
  if (s->looked == 0 || p->guess_us.count == 0 || p->check_us.count == 0) return min_i32(GUESS_FIRST, most);
  return best_length(p, (s->right + RIGHT_FIRST) / (s->looked + 1), most);
}

bool partial_kv_plan(partial_kv *p, int32_t slot, uint64_t session, int32_t rows, int32_t most,
                     int32_t *worth) {
  partial_slot *s = &p->slots[slot];
  *worth = 0;
  const bool known = p->options.rows > 0 || p->plain_us.count >= PLAIN_FIRST;
  if (rows < p->options.threshold || !known) return false;
  if (s->session != session) *s = (partial_slot){.view = s->view, .session = session, .mass = s->mass};
  if (s->rest > 0 && s->rest-- > 0) return false;
  if (s->rows == 0 || s->rows > rows) return true;
  *worth = min_i32(worth_of(p, s, PARTIAL_ROWS_MAX), most);
  if (*worth > 0) return true;
  partial_kv_failed(p, slot);
  return false;
}

/* Then it is weighed anew, and one chain is tried. */
void partial_kv_failed(partial_kv *p, int32_t slot) {
  partial_slot *s = &p->slots[slot];
  s->rest = REST - 1;
  s->rows = 0;
  s->looked = s->right = 0;
}

void partial_kv_measured(partial_kv *p, bool guessed, double us) {
  average_add(guessed ? &p->check_us : &p->plain_us, us);
}

void partial_kv_passed(partial_kv *p, int32_t slot, uint64_t session, int32_t rows, const float *mass,
                       int32_t guessed, int32_t accepted) {
  partial_slot *s = &p->slots[slot];
  const int32_t blocks = (rows + KV_BLOCK - 1) / KV_BLOCK;
  assert(s->session == session);
  s->rows = mass ? rows : 0;
  for (int32_t b = 0; b < p->blocks && mass; b++) /* no number weighs nothing */
    s->mass[b] = b < blocks && mass[b] > 0 ? mass[b] : 0;
  const double kept = exp2(-guessed / (double)FORGET_AFTER);
  s->looked = s->looked * kept + min_i32(accepted + 1, guessed);
  s->right = s->right * kept + accepted;
  p->counters.accepted += (uint64_t)accepted;
}

/* --- guessing --- */

/* The chains that go on. */
typedef struct rollout {
  partial_chain *chains[CHAINS_MAX];
  int32_t count;
  model_segment segments[CHAINS_MAX];
  int32_t parents[CHAINS_MAX], slots[CHAINS_MAX]; /* of the row before, and of the row */
} rollout;

static void show(partial_kv *p, const partial_chain *c) {
  const partial_slot *s = &p->slots[c->slot];
  const int32_t rows = kv_length(p->kv, c->seq);
  const int32_t count = partial_choose(&p->options, s->mass, rows, p->room, p->shown);
  kv_view(p->kv, s->view, c->seq, p->shown, count);
}

static void hide(partial_kv *p, const partial_chain *c) {
  const int32_t view = p->slots[c->slot].view;
  kv_rollback(p->kv, view, kv_length(p->kv, view)); /* what was staged on it */
}

static model_segment row_of(const partial_kv *p, const partial_chain *c, const int32_t *parent) {
  const int32_t view = p->slots[c->slot].view, hidden = kv_length(p->kv, c->seq) - kv_length(p->kv, view);
  return (model_segment){.seq = view,
                         .kind = MODEL_TREE,
                         .count = 1,
                         .tokens = c->count == 0 ? &c->root : &c->tokens[c->count - 1],
                         .parents = parent,
                         .sampling = c->sampling,
                         .shift = hidden,
                         .rope_shift = hidden};
}

static bool ends(const partial_chain *c) {
  if (c->count == c->most) return true;
  for (int32_t i = 0; i < c->stop_count && c->count > 0; i++)
    if (c->stops[i] == c->tokens[c->count - 1]) return true;
  return false;
}

/* Those that end, or for which no row can be staged, leave; parents follow. */
static void keep_going(partial_kv *p, rollout *r) {
  int32_t kept = 0;
  for (int32_t i = 0; i < r->count; i++) {
    partial_chain *c = r->chains[i];
    r->chains[kept] = c;
    r->parents[kept] = c->count == 0 ? -1 : r->slots[i];
    const int32_t view = p->slots[c->slot].view;
    if (!ends(c) && kv_grow(p->kv, view, &r->parents[kept], 1, &r->slots[kept]) == ERR_OK) kept++;
  }
  r->count = kept;
  for (int32_t i = 0; i < kept; i++) r->segments[i] = row_of(p, r->chains[i], &r->parents[i]);
}

/* One token more for each chain. False: the forward failed. */
static bool guess_next(partial_kv *p, rollout *r) {
  const uint64_t begin = clock_us();
  if (model_forward(p->model, p->kv, r->segments, r->count) != ERR_OK) {
    p->counters.failures++;
    for (int32_t i = 0; i < r->count; i++) partial_kv_failed(p, r->chains[i]->slot);
    return false;
  }
  for (int32_t i = 0; i < r->count; i++) {
    partial_chain *c = r->chains[i];
    const int32_t token = model_sampled(p->model, i, 0);
    if (token < 0)
      c->most = c->count;
    else
      c->tokens[c->count++] = token;
    p->counters.guessed += token >= 0;
  }
  const uint64_t us = clock_us() - begin;
  p->counters.forwards++;
  p->counters.us += us;
  if (!model_prepared(p->model)) average_add(&p->guess_us, (double)us);
  return true;
}

void partial_kv_guess(partial_kv *p, partial_chain *const *chains, int32_t count) {
  rollout r = {.count = count};
  assert(count <= CHAINS_MAX);
  for (int32_t i = 0; i < count; i++) {
    r.chains[i] = chains[i];
    chains[i]->count = 0;
    show(p, chains[i]);
  }
  p->counters.chains += (uint64_t)count;
  do keep_going(p, &r);
  while (r.count > 0 && guess_next(p, &r));
  for (int32_t i = 0; i < count; i++) hide(p, chains[i]);
}

const partial_counters *partial_kv_count(const partial_kv *p) {
  return &p->counters;
}
