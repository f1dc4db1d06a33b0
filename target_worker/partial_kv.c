#include "target_worker/partial_kv.h"

#include "common/base/clock.h"
#include "common/base/min.h"
#include "common/speculative/average.h"
#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHAINS_MAX     32
#define GUESS_ROWS_MAX 16 /* of a chain in a forward over partial KV, with nodes of drafts, */
#define LOOKUP_ROWS    8  /* and with tokens that were looked up */
_Static_assert(CHAINS_MAX *GUESS_ROWS_MAX <= MODEL_ROWS_MAX, "all chains go through a forward");
#define FIRST_CLASS 3    /* of the chain that is tried first */
#define CLASSES     6    /* of chains, by length: 2^class - 1 tokens, which a pass checks with 2^class rows */
#define WAYS        6    /* of sessions, by how they are to be treated */
#define SHARES      7    /* of forwards, by the sessions in it: 1, 2, 3 to 4, 5 to 8, ... */
#define REST_FIRST  256  /* passes after it was seen that no chain pays; twice as many the next time, */
#define REST_MOST   8192 /* up to these */
#define TRIES       4    /* of chains whose guesses could not be timed */
#define GROWTH      1.25 /* that twice as many rows may cost, as long as that was not measured */
#define RIGHT_FIRST 0.9
#define FORGET_OWN  64  /* guesses: what was right before counts half, of a session */
#define FORGET_ALL  512 /* and of all */
#define PRIOR       16  /* guesses that those of all count for where a session is judged */

/* Passes that are plain: `first` ones before the first chain, and later `row` ones in a row of `every`,
 * because contexts grow. Without drafts, and with them, whose passes differ in how much they give, and whose
 * nodes come late in the first ones behind a chain: so many are not counted. */
static const struct { uint32_t first, every, row, late; } plain_passes[2] = {{2, 64, 1, 0}, {8, 128, 8, 2}};

typedef struct partial_record { /* of the last guesses */
  double looked, right;         /* how many were looked at, and how many of these were right */
} partial_record;

typedef struct partial_slot {
  int32_t view; /* of the cache */
  uint64_t session;
  msg_partial how; /* at the last plan, */
  bool drafted;    /* when drafts fed a session of the forward */
  int32_t rows;    /* that were weighed; 0: none were */
  float *mass;     /* [blocks of a context] */
  partial_record own;
  partial_text text;
} partial_slot;

typedef struct partial_share { /* forwards of so many sessions */
  /* Microseconds of a guess, of a plain pass, and of one that weighs and checks chains of a class */
  average guess, plain, check[CLASSES];
  average tokens;          /* of a plain pass, for each session */
  uint32_t passes, row;    /* passes; plain ones since the last chain */
  int32_t rest, rest_next; /* passes that are plain from now on; those of the next rest; 0: as the first */
  int32_t tries;           /* chains since the last rest, as far as that matters */
} partial_share;

/* What was learnt of sessions that are to be treated alike. A client that asks for what does not pay teaches
 * nothing to others. */
typedef struct partial_way {
  msg_partial how;
  bool drafted;
  uint64_t used; /* by the last plan of that number */
  partial_share shares[SHARES];
  partial_record all;
} partial_way;

struct partial_kv {
  partial_options options;
  model *model;
  kv_cache *kv;
  int32_t slot_count, context, blocks; /* blocks: of a context */
  partial_slot *slots;
  float *masses, *room;         /* [slots][blocks]; [2][blocks] */
  int32_t *shown;               /* [blocks] */
  partial_way ways[WAYS], *way; /* the first one is the target's own; that of the last plan */
  uint64_t plans;
  bool learns;                 /* what the last plan's guesses take is to be learnt */
  int32_t broken, broken_next; /* passes without chains, since a forward failed; when one fails again */
  partial_counters counters;
};

/* --- which blocks --- */

static int compare_floats(const void *a, const void *b) {
  const float x = *(const float *)a, y = *(const float *)b;
  return (x < y) - (x > y); /* the largest first */
}

/* What each group of blocks weighs, and the least that is shown: of the groups from `first` to `end` the
 * `taken` heaviest. */
static float least_of(const float *mass, int32_t first, int32_t end, int32_t taken, float *room) {
  memcpy(room, mass + first, (size_t)(end - first) * sizeof *room);
  qsort(room, (size_t)(end - first), sizeof *room, compare_floats);
  return room[taken - 1];
}

static void add_up(const float *mass, int32_t blocks, int32_t each, float *to) {
  for (int32_t b = 0; b < blocks; b++) to[b / each] = b % each == 0 ? mass[b] : to[b / each] + mass[b];
}

int32_t partial_choose(const msg_partial *o, const float *mass, int32_t rows, float *room, int32_t *to) {
  const int32_t blocks = (rows + KV_BLOCK - 1) / KV_BLOCK, each = o->block / KV_BLOCK,
                groups = (blocks + each - 1) / each, first = min_i32(o->sink, groups),
                end = groups - o->window > first ? groups - o->window : first,
                taken = min_i32(o->retrieval, end - first);
  float *weights = room + groups;
  add_up(mass, blocks, each, weights);
  const float least = taken > 0 ? least_of(weights, first, end, taken, room) : INFINITY;
  int32_t equal = 0, count = 0;
  for (int32_t i = 0; i < taken; i++) equal += room[i] == least;
  for (int32_t g = 0; g < groups; g++) {
    const bool own = g < first || g >= end;
    if (!own && weights[g] <= least && (weights[g] != least || equal-- <= 0)) continue;
    for (int32_t b = g * each; b < (g + 1) * each && b < blocks; b++) to[count++] = b;
  }
  return count;
}

/* --- opening --- */

static int take(partial_kv *p, err *e) {
  const size_t slots = (size_t)p->slot_count, blocks = (size_t)p->blocks;
  p->slots = calloc(slots, sizeof *p->slots);
  p->masses = calloc(slots * blocks, sizeof *p->masses);
  p->room = calloc(2 * blocks, sizeof *p->room);
  p->shown = calloc(blocks, sizeof *p->shown);
  if (!p->slots || !p->masses || !p->room || !p->shown ||
      model_weigh(p->model, p->kv, p->options.weighing) != ERR_OK)
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
                    .context = context,
                    .blocks = (context + KV_BLOCK - 1) / KV_BLOCK,
                    .broken_next = REST_FIRST};
  p->way = &p->ways[0];
  p->way->how = o->own;
  int rc = take(p, e);
  if (rc == ERR_OK)
    *out = p;
  else
    partial_kv_close(p);
  return rc;
}

void partial_kv_close(partial_kv *p) {
  if (!p) return;
  for (int32_t i = 0; p->slots && i < p->slot_count; i++) {
    if (p->slots[i].mass && p->slots[i].view >= 0) kv_release(p->kv, p->slots[i].view);
    partial_text_fini(&p->slots[i].text);
  }
  free(p->slots);
  free(p->masses);
  free(p->room);
  free(p->shown);
  free(p);
}

/* --- how many --- */

/* The least n with 2^n >= x. */
static int32_t log2_of(int32_t x) {
  int32_t n = 0;
  while (n < 31 && (1 << n) < x) n++;
  return n;
}

static partial_share *share_of(const partial_kv *p, int32_t sessions) {
  return &p->way->shares[min_i32(log2_of(sessions), SHARES - 1)];
}

static bool alike(const msg_partial *a, const msg_partial *b) {
  return memcmp(a, b, sizeof *a) == 0;
}

/* NULL: nothing is known of it. */
static partial_way *find_way(partial_kv *p, const msg_partial *how, bool drafted) {
  for (int32_t i = 0; i < WAYS; i++)
    if (p->ways[i].drafted == drafted && alike(&p->ways[i].how, how)) return &p->ways[i];
  return NULL;
}

/* In place of the one that was not used for longest, but never of the target's own. */
static partial_way *take_way(partial_kv *p, const msg_partial *how, bool drafted) {
  partial_way *w = find_way(p, how, drafted), *oldest = &p->ways[1];
  for (int32_t i = 2; i < WAYS; i++)
    if (p->ways[i].used < oldest->used) oldest = &p->ways[i];
  if (!w) *(w = oldest) = (partial_way){.how = *how, .drafted = drafted};
  w->used = ++p->plans;
  return w;
}

/* Of a pass that checks chains of this class. */
static double check_us(const partial_share *t, int32_t class) {
  double us = t->plain.mean;
  for (int32_t c = 1; c <= class; c++) us = t->check[c].count > 0 ? t->check[c].mean : us * GROWTH;
  return us;
}

static void record(partial_record *r, int32_t guessed, int32_t accepted, double forget) {
  const int32_t looked = min_i32(accepted + 1, guessed);
  const double kept = exp2(-looked / forget);
  r->looked = r->looked * kept + looked;
  r->right = r->right * kept + accepted;
}

static double right_of(const partial_record *r, double prior) {
  return (r->right + prior * PRIOR) / (r->looked + PRIOR);
}

/* What a pass is expected to give all sessions together, with chains of n tokens. */
static double tokens_of(const partial_kv *p, const partial_step *steps, int32_t count, int32_t n) {
  const double all = right_of(&p->way->all, RIGHT_FIRST);
  double tokens = 0;
  for (int32_t i = 0; i < count; i++) {
    const double right = right_of(&p->slots[steps[i].slot].own, all);
    double share = 1;
    for (int32_t k = 0; k <= n; k++, share *= right) tokens += share;
  }
  return tokens;
}

/* The chains that give all sessions together the most tokens a microsecond. 0: a plain pass gives more. */
static int32_t best_length(const partial_kv *p, const partial_share *t, const partial_step *steps,
                           int32_t count, int32_t most) {
  double best = count * t->tokens.mean / t->plain.mean;
  int32_t length = 0;
  for (int32_t class = 1; class < CLASSES && (1 << class) - 1 <= most; class ++) {
    const int32_t n = (1 << class) - 1;
    const double speed = tokens_of(p, steps, count, n) / (check_us(t, class) + n * t->guess.mean);
    if (speed > best) best = speed, length = n;
  }
  return length;
}

static int32_t length_of(const partial_kv *p, partial_share *t, const partial_step *steps, int32_t count,
                         int32_t most) {
  if (p->options.rows > 0) return min_i32(p->options.rows, most);
  const bool unknown = t->tries == 0 || (t->guess.count == 0 && t->tries < TRIES);
  if (unknown) t->tries++;
  if (unknown) return min_i32((1 << FIRST_CLASS) - 1, most);
  const int32_t length = t->guess.count > 0 ? best_length(p, t, steps, count, most) : 0;
  if (length > 0 && t->check[log2_of(length + 1)].count > 0) t->rest_next = REST_FIRST;
  return length;
}

/* What was measured of passes with guesses is forgotten. */
static void forget(partial_share *t) {
  t->tries = 0;
  t->guess = (average){0};
  memset(t->check, 0, sizeof t->check);
}

/* Sessions of this way weigh anew afterwards, and one chain is tried. */
static void rest(partial_kv *p, partial_share *t) {
  t->rest = t->rest_next > 0 ? t->rest_next : REST_FIRST;
  t->rest_next = min_i32(2 * t->rest, REST_MOST);
  for (int32_t i = 0; i < p->slot_count; i++)
    if (p->slots[i].drafted == p->way->drafted && alike(&p->slots[i].how, &p->way->how)) p->slots[i].rows = 0;
}

static bool any_drafted(const partial_step *steps, int32_t count) {
  bool any = false;
  for (int32_t i = 0; i < count; i++) any |= steps[i].drafted;
  return any;
}

static bool all_long_enough(partial_kv *p, const partial_step *steps, int32_t count) {
  const bool drafted = any_drafted(steps, count);
  bool enough = true;
  for (int32_t i = 0; i < count; i++) {
    partial_slot *s = &p->slots[steps[i].slot];
    enough &= steps[i].rows >= steps[i].how->threshold;
    if (s->session != steps[i].session)
      *s = (partial_slot){.view = s->view, .session = steps[i].session, .mass = s->mass, .text = s->text};
    s->how = *steps[i].how;
    s->drafted = drafted;
  }
  return enough;
}

static bool all_weighed(const partial_kv *p, const partial_step *steps, int32_t count) {
  bool weighed = true;
  for (int32_t i = 0; i < count; i++) {
    const int32_t rows = p->slots[steps[i].slot].rows;
    weighed &= rows > 0 && rows <= steps[i].rows;
  }
  return weighed;
}

static bool any_lossy(const partial_step *steps, int32_t count) {
  bool any = false;
  for (int32_t i = 0; i < count; i++) any |= steps[i].how->mode == WIRE_PARTIAL_LOSSY;
  return any;
}

/* Every `refresh` tokens the whole cache is read; exact sessions beside lossy ones only weigh. */
static partial_plan plan_lossy(const partial_kv *p, partial_step *steps, int32_t count, int32_t most) {
  for (int32_t i = 0; i < count && all_weighed(p, steps, count); i++)
    if (steps[i].how->mode == WIRE_PARTIAL_LOSSY) steps[i].length = min_i32(steps[i].how->refresh, most);
  return (partial_plan){.weighs = true, .why = PARTIAL_BESIDE};
}

static bool all_alike(const partial_step *steps, int32_t count) {
  bool same = true;
  for (int32_t i = 1; i < count; i++) same &= alike(steps[i].how, steps[0].how);
  return same;
}

/* Sessions of several ways go by the times of the target's own, and put none to rest. */
static partial_plan plan_exact(partial_kv *p, partial_step *steps, int32_t count, int32_t most) {
  const bool mixed = !all_alike(steps, count), drafted = any_drafted(steps, count);
  p->way = mixed ? &p->ways[0] : take_way(p, steps[0].how, drafted);
  partial_share *t = share_of(p, count);
  const partial_plan weighing = {.weighs = true, .learns = true},
                     resting = {.learns = true, .why = PARTIAL_RESTING};
  partial_plan plain = {.learns = true};
  if (t->rest > 0) {
    if (--t->rest == 0) forget(t);
    return resting;
  }
  const uint32_t every = plain_passes[drafted].every;
  const bool measures = t->plain.count < plain_passes[drafted].first ||
                        t->passes++ % every >= every - plain_passes[drafted].row;
  t->row = measures ? t->row + 1 : 0;
  plain.learns = t->row > plain_passes[drafted].late;
  if (measures && p->options.rows == 0) return plain;
  if (!all_weighed(p, steps, count)) return weighing;
  if (!mixed) most = min_i32(most, steps[0].how->refresh);
  const int32_t length = length_of(p, t, steps, count, most);
  for (int32_t i = 0; i < count; i++) steps[i].length = length;
  if (length > 0) return weighing;
  if (!mixed) rest(p, t);
  return resting;
}

partial_plan partial_kv_plan(partial_kv *p, partial_step *steps, int32_t count, int32_t most) {
  for (int32_t i = 0; i < count; i++) steps[i].length = 0;
  p->learns = false;
  if (!all_long_enough(p, steps, count)) return (partial_plan){.why = PARTIAL_SHORT};
  if (p->broken > 0 && p->broken-- > 0) return (partial_plan){.why = PARTIAL_FAILED};
  if (any_lossy(steps, count)) return plan_lossy(p, steps, count, most);
  p->learns = true;
  return plan_exact(p, steps, count, most);
}

void partial_kv_failed(partial_kv *p) {
  if (p->broken > 0) return; /* the same one is told of each of its sessions */
  p->broken = p->broken_next;
  p->broken_next = min_i32(2 * p->broken, REST_MOST);
  for (int32_t i = 0; i < p->slot_count; i++) p->slots[i].rows = 0;
}

void partial_kv_measured(partial_kv *p, int32_t sessions, int32_t length, int32_t tokens, double us) {
  partial_share *t = share_of(p, sessions);
  if (length == 0) average_add(&t->tokens, (double)tokens / sessions);
  average_add(length > 0 ? &t->check[min_i32(log2_of(length + 1), CLASSES - 1)] : &t->plain, us);
}

void partial_kv_passed(partial_kv *p, int32_t slot, uint64_t session, int32_t rows, const float *mass,
                       int32_t guessed, int32_t accepted, int32_t lossy) {
  partial_slot *s = &p->slots[slot];
  const int32_t blocks = (rows + KV_BLOCK - 1) / KV_BLOCK;
  assert(s->session == session);
  s->rows = mass ? rows : 0;
  for (int32_t b = 0; b < p->blocks && mass; b++) /* what is not known is shown last */
    s->mass[b] = b >= blocks || isnan(mass[b]) ? -FLT_MAX : mass[b];
  if (guessed > 0) p->broken_next = REST_FIRST;
  p->counters.accepted += (uint64_t)accepted;
  p->counters.lossy += (uint64_t)lossy;
  if (s->how.mode == WIRE_PARTIAL_LOSSY) return;
  partial_way *way = find_way(p, &s->how, s->drafted);
  record(&s->own, guessed, accepted, FORGET_OWN);
  if (way) record(&way->all, guessed, accepted, FORGET_ALL);
}

/* --- guessing --- */

/* A chain that goes on: its last token has no row yet. It has row 0 of a forward; others hang from it, or
 * from an earlier one of them (`from`). */
typedef struct rollout_end {
  partial_chain *chain;
  int32_t tokens[GUESS_ROWS_MAX], from[GUESS_ROWS_MAX], parents[GUESS_ROWS_MAX], slots[GUESS_ROWS_MAX], count;
  int32_t last;   /* slot of the row before; -1: it is a committed one */
  int32_t staged; /* rows so far */
  bool drafted;   /* the others are nodes of drafts, rather than tokens that were looked up */
} rollout_end;

typedef struct rollout {
  rollout_end ends[CHAINS_MAX];
  model_segment segments[CHAINS_MAX];
  int32_t count, sessions; /* sessions: that began */
  int32_t room;            /* rows that each of them may stage */
  int32_t forwards, timed; /* timed: those that say what a forward takes, */
  double us;               /* which took so long together */
} rollout;

void partial_kv_text(partial_kv *p, int32_t slot, const partial_news *n) {
  partial_text_update(&p->slots[slot].text, n, p->context);
}

static void show(partial_kv *p, const partial_chain *c) {
  const partial_slot *s = &p->slots[c->slot];
  const int32_t rows = kv_length(p->kv, c->seq);
  const int32_t count = partial_choose(&s->how, s->mass, rows, p->room, p->shown);
  kv_view(p->kv, s->view, c->seq, p->shown, count);
}

static void hide(partial_kv *p, const partial_chain *c) {
  const int32_t view = p->slots[c->slot].view;
  kv_rollback(p->kv, view, kv_length(p->kv, view)); /* what was staged on it */
}

static model_segment rows_of(const partial_kv *p, const rollout_end *e) {
  const partial_chain *c = e->chain;
  const int32_t view = p->slots[c->slot].view, hidden = kv_length(p->kv, c->seq) - kv_length(p->kv, view);
  return (model_segment){.seq = view,
                         .kind = MODEL_TREE,
                         .count = e->count,
                         .tokens = e->tokens,
                         .parents = e->parents,
                         .all_logits = true,
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

/* Rows for the last token and `more` behind it. False: there is no room. */
static bool take_rows(partial_kv *p, rollout_end *e, int32_t more) {
  const partial_chain *c = e->chain;
  const int32_t count = 1 + more, view = p->slots[c->slot].view;
  if (kv_grow_tree(p->kv, view, e->last, e->from, count, e->slots) != ERR_OK) return false;
  e->count = count;
  e->staged += count;
  e->tokens[0] = c->count == 0 ? c->root : c->tokens[c->count - 1];
  e->parents[0] = e->last;
  for (int32_t i = 1; i < count; i++) e->parents[i] = e->slots[e->from[i]];
  return true;
}

/* The best nodes of the chain's tree. */
static int32_t put_tree(rollout_end *e, int32_t most) {
  const partial_chain *c = e->chain;
  const int32_t more = min_i32(c->tree_rows - 1, most);
  for (int32_t i = 1; i <= more; i++) {
    e->tokens[i] = c->tree[i];
    e->from[i] = c->parents[i];
  }
  return more;
}

/* What is looked up stands behind the chain for a moment. */
static int32_t put_lookup(partial_slot *s, rollout_end *e, int32_t most) {
  partial_chain *c = e->chain;
  const int32_t more = partial_text_next(&s->text, s->session, c->tokens, c->count, most);
  for (int32_t i = 1; i <= more; i++) {
    e->tokens[i] = c->tokens[c->count + i - 1];
    e->from[i] = i - 1;
  }
  return more;
}

/* The last token of a chain needs no row, and if all that is put behind it is wrong, the chain must still
 * have room for a row for each token. */
static bool next_rows(partial_kv *p, rollout_end *e, int32_t room) {
  const partial_chain *c = e->chain;
  const int32_t left = c->most - c->count, spare = room - e->staged - left;
  e->drafted = e->staged == 0 && c->tree_rows > 1;
  const int32_t rows = e->drafted ? GUESS_ROWS_MAX : min_i32(left, LOOKUP_ROWS),
                most = min_i32(rows - 1, spare),
                more = e->drafted ? put_tree(e, most) : put_lookup(&p->slots[c->slot], e, most);
  return (more > 0 && take_rows(p, e, more)) || take_rows(p, e, 0);
}

/* Those that end, or for which no row can be staged, leave. */
static void keep_going(partial_kv *p, rollout *r) {
  int32_t kept = 0;
  for (int32_t i = 0; i < r->count; i++) {
    if (ends(r->ends[i].chain)) continue;
    if (kept < i) r->ends[kept] = r->ends[i];
    kept += next_rows(p, &r->ends[kept], r->room);
  }
  r->count = kept;
  for (int32_t i = 0; i < kept; i++) r->segments[i] = rows_of(p, &r->ends[i]);
}

/* The row behind this one that has the token, or -1. */
static int32_t row_after(const rollout_end *e, int32_t row, int32_t token) {
  for (int32_t i = row + 1; i < e->count; i++)
    if (e->from[i] == row && e->tokens[i] == token) return i;
  return -1;
}

/* The tokens of a segment's rows, as far as what was put behind the chain is right. */
static void take_tokens(partial_kv *p, rollout_end *e, int32_t segment) {
  partial_chain *c = e->chain;
  const int32_t before = c->count;
  for (int32_t row = 0; row >= 0;) {
    const int32_t token = model_sampled(p->model, segment, row);
    if (token < 0) c->most = c->count;
    if (token < 0) break;
    c->tokens[c->count++] = token;
    e->last = e->slots[row];
    row = ends(c) ? -1 : row_after(e, row, token);
  }
  p->counters.guessed += (uint64_t)(c->count - before);
  *(e->drafted ? &p->counters.checked : &p->counters.looked_up) += (uint64_t)(e->count - 1);
  if (c->count > before + 1)
    *(e->drafted ? &p->counters.right : &p->counters.found) += (uint64_t)(c->count - before - 1);
}

/* One token more for each chain, or several. False: all have ended, or the forward failed. */
static bool guess_next(partial_kv *p, rollout *r) {
  const uint64_t begin = clock_us();
  keep_going(p, r);
  if (r->count == 0) return false;
  if (model_forward(p->model, p->kv, r->segments, r->count) != ERR_OK) {
    p->counters.failures++;
    partial_kv_failed(p);
    return false;
  }
  for (int32_t i = 0; i < r->count; i++) take_tokens(p, &r->ends[i], i);
  const uint64_t us = clock_us() - begin;
  const bool timed = !model_prepared(p->model);
  p->counters.forwards++;
  p->counters.us += us;
  r->forwards++;
  r->timed += timed;
  if (timed) r->us += (double)us;
  return true;
}

/* What a guess takes: a share of the forwards that the longest chain took. */
static void learn_guess(partial_kv *p, const rollout *r, partial_chain *const *chains, int32_t count) {
  int32_t longest = 0;
  for (int32_t i = 0; i < count; i++)
    if (chains[i]->count > longest) longest = chains[i]->count;
  if (p->learns && r->timed > 0 && longest > 0)
    average_add(&share_of(p, r->sessions)->guess, r->us / r->timed * r->forwards / longest);
}

void partial_kv_guess(partial_kv *p, partial_chain *const *chains, int32_t count) {
  rollout r = {.count = count, .sessions = count};
  assert(count <= CHAINS_MAX);
  for (int32_t i = 0; i < count; i++) {
    r.ends[i] = (rollout_end){.chain = chains[i], .last = -1};
    chains[i]->count = 0;
    show(p, chains[i]);
    partial_slot *s = &p->slots[chains[i]->slot];
    partial_text_next(&s->text, s->session, NULL, 0, 0); /* so that no forward is timed with what is new */
  }
  p->counters.chains += (uint64_t)count;
  r.room = kv_stage_share(p->kv, count);
  while (guess_next(p, &r)) {
  }
  learn_guess(p, &r, chains, count);
  for (int32_t i = 0; i < count; i++) hide(p, chains[i]);
}

/* --- telling --- */

const char *const partial_reason_names[PARTIAL_REASONS] = {
    [PARTIAL_NONE] = "none",         [PARTIAL_OFF] = "off",       [PARTIAL_ROOM] = "room",
    [PARTIAL_SAMPLING] = "sampling", [PARTIAL_BESIDE] = "beside", [PARTIAL_SHORT] = "short",
    [PARTIAL_RESTING] = "resting",   [PARTIAL_FAILED] = "failed"};

bool partial_kv_falls_back(partial_kv *p, partial_reason why) {
  return p->counters.fallbacks[why]++ == 0;
}

void partial_kv_say(const partial_kv *p, int32_t sessions, char *text, size_t size) {
  const partial_share *t = share_of(p, sessions);
  const double guess = t->guess.mean / 1000, plain = t->plain.mean / 1000;
  if (t->guess.count == 0)
    snprintf(text, size, "no guess could be timed where %d sessions share a pass", sessions);
  else
    snprintf(text, size,
             "no chain of guesses pays where %d sessions share a pass: a guess takes %.2f ms, a plain pass "
             "%.2f, which gives each %.1f tokens, and %.0f of 100 guesses are right",
             sessions, guess, plain, t->tokens.mean, 100 * right_of(&p->way->all, RIGHT_FIRST));
}

const partial_counters *partial_kv_count(const partial_kv *p) {
  return &p->counters;
}
