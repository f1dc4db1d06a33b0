#include "common/grammar/grammar_states.h"

#include <stdlib.h>
#include <string.h>

#define WAYS       16384  /* in the tables, a power of two like STATES */
#define STATES     4096   /* below STEP_STATE */
#define NUMBERS    131072 /* in the lists of ways that states and steps have */
#define VISITS_MAX 4096   /* ways that one character leads through */
#define FOUND_MAX  65536  /* ways that one byte leads to, before those that are alike count once */

/* A step: the state + 1 in the low bits, and its work. 0: not known yet. */
#define STEP_BITS  13
#define STEP_STATE ((1u << STEP_BITS) - 1)
#define WORK_MAX   ((1u << (32 - STEP_BITS)) - 1)

typedef struct way {
  int32_t element, parent, depth;
  int32_t first, count; /* of the numbers: the ways that one character leads to; first < 0: not known yet */
  int32_t visits;       /* and what it took to find them */
  uint32_t seen;        /* the search that has seen it */
} way;

typedef struct partial { /* a character whose last bytes are still to come; all zero: there is none */
  uint32_t value;
  uint8_t left, size; /* bytes to come; bytes of it all */
} partial;

typedef struct state {
  int32_t first, count; /* of the numbers: its ways, ascending */
  partial partial;
} state;

typedef struct tables {
  way ways[WAYS];
  state states[STATES];
  int32_t way_table[2 * WAYS], state_table[2 * STATES]; /* number + 1; 0: free */
  int32_t numbers[NUMBERS];
  uint32_t steps[STATES][256];
  int32_t way_count, state_count, number_count;
  uint32_t searches;
} tables;

struct grammar_states {
  const grammar *g;
  tables *t;
  int32_t found[FOUND_MAX]; /* [found_count] */
  int32_t found_count;
  int32_t open[VISITS_MAX]; /* ways of a search that are still to be looked at */
  int32_t open_count, visits;
};

/* --- ways --- */

static uint32_t mixed(uint64_t x) {
  x *= 0x9e3779b97f4a7c15u;
  return (uint32_t)(x >> 32);
}

#define TOO_DEEP (-2) /* in place of a way */

static int32_t find_way(grammar_states *s, int32_t element, int32_t parent) {
  tables *t = s->t;
  uint32_t at = mixed((uint64_t)(uint32_t)element << 32 | (uint32_t)parent) % (2 * WAYS);
  for (; t->way_table[at]; at = (at + 1) % (2 * WAYS)) {
    const way *w = &t->ways[t->way_table[at] - 1];
    if (w->element == element && w->parent == parent) return t->way_table[at] - 1;
  }
  int32_t depth = t->ways[parent].depth + 1;
  if (depth > GRAMMAR_STATES_DEPTH_MAX) return TOO_DEEP;
  if (t->way_count == WAYS) return GRAMMAR_STATES_FULL;
  t->ways[t->way_count] = (way){.element = element, .parent = parent, .depth = depth, .first = -1};
  t->way_table[at] = ++t->way_count;
  return t->way_count - 1;
}

/* What is left of an alternative, from an element on. */
static int32_t rest(grammar_states *s, int32_t element, int32_t parent) {
  return s->g->elements[element].kind == GRAMMAR_END ? parent : find_way(s, element, parent);
}

/* --- the ways that begin with a character --- */

/* ERR_FULL: the tables are; ERR_LIMIT: the search has seen too much. */
static int open_way(grammar_states *s, int32_t w) {
  tables *t = s->t;
  if (w == TOO_DEEP) return ERR_OK;
  if (w < 0) return ERR_FULL;
  if (t->ways[w].seen == t->searches) return ERR_OK;
  if (s->visits == VISITS_MAX) return ERR_LIMIT;
  t->ways[w].seen = t->searches;
  s->open[s->open_count++] = w;
  s->visits++;
  return ERR_OK;
}

static int open_call(grammar_states *s, int32_t w) {
  const grammar *g = s->g;
  const way at = s->t->ways[w];
  const grammar_rule *r = &g->rules[g->elements[at.element].value];
  int32_t behind = rest(s, at.element + 1, at.parent);
  if (behind == TOO_DEEP) return ERR_OK;
  int rc = behind >= 0 ? ERR_OK : ERR_FULL;
  for (int32_t i = 0; i < r->count && rc == ERR_OK; i++)
    rc = open_way(s, rest(s, g->alternatives[r->first + i], behind));
  return rc;
}

/* Appends the ways of characters, and the end, that `from` leads to without one. ERR_FULL: the tables are;
 * ERR_LIMIT: there are too many, and none is appended. */
static int search(grammar_states *s, int32_t from, int32_t *count) {
  tables *t = s->t;
  int32_t first = t->number_count;
  t->searches++;
  s->open_count = s->visits = 0;
  int rc = open_way(s, from);
  while (rc == ERR_OK && s->open_count > 0) {
    int32_t w = s->open[--s->open_count];
    bool called = w > 0 && s->g->elements[t->ways[w].element].kind == GRAMMAR_RULE;
    if (called)
      rc = open_call(s, w);
    else if (t->number_count < NUMBERS)
      t->numbers[t->number_count++] = w;
    else
      rc = ERR_FULL;
  }
  if (rc) t->number_count = first;
  *count = t->number_count - first;
  return rc;
}

/* What follows the character that a way expects; false: the tables are full. */
static bool follow(grammar_states *s, int32_t w) {
  way *at = &s->t->ways[w];
  if (at->first >= 0) return true;
  int32_t first = s->t->number_count, count = 0;
  int32_t from = rest(s, at->element + 1, at->parent);
  if (from == GRAMMAR_STATES_FULL) return false;
  if (from != TOO_DEEP && search(s, from, &count) == ERR_FULL) return false;
  at->first = first;
  at->count = count;
  at->visits = from == TOO_DEEP ? 1 : s->visits;
  return true;
}

/* --- states --- */

static int compare_numbers(const void *a, const void *b) {
  return *(const int32_t *)a - *(const int32_t *)b;
}

static void sort_found(grammar_states *s) {
  int32_t n = 0;
  for (int32_t i = 1; i < s->found_count; i++)
    if (s->found[i] < s->found[i - 1]) {
      qsort(s->found, (size_t)s->found_count, sizeof *s->found, compare_numbers);
      break;
    }
  for (int32_t i = 0; i < s->found_count; i++)
    if (n == 0 || s->found[i] != s->found[n - 1]) s->found[n++] = s->found[i];
  s->found_count = n;
}

static bool is_state(const tables *t, const state *x, const grammar_states *s, partial p) {
  return x->count == s->found_count && x->partial.value == p.value && x->partial.left == p.left &&
         x->partial.size == p.size &&
         memcmp(t->numbers + x->first, s->found, (size_t)x->count * sizeof *s->found) == 0;
}

/* The state of the ways that were found. */
static int32_t find_state(grammar_states *s, partial p) {
  tables *t = s->t;
  sort_found(s);
  if (s->found_count == 0 || s->found_count > GRAMMAR_STATES_WAYS_MAX) return GRAMMAR_STATES_DEAD;
  uint64_t hash = (uint64_t)p.value << 8 | p.left;
  for (int32_t i = 0; i < s->found_count; i++) hash = (hash ^ (uint32_t)s->found[i]) * 0x100000001b3u;
  uint32_t at = mixed(hash) % (2 * STATES);
  for (; t->state_table[at]; at = (at + 1) % (2 * STATES))
    if (is_state(t, &t->states[t->state_table[at] - 1], s, p)) return t->state_table[at] - 1;
  if (t->state_count == STATES || s->found_count > NUMBERS - t->number_count) return GRAMMAR_STATES_FULL;
  t->states[t->state_count] = (state){.first = t->number_count, .count = s->found_count, .partial = p};
  memcpy(t->numbers + t->number_count, s->found, (size_t)s->found_count * sizeof *s->found);
  t->number_count += s->found_count;
  t->state_table[at] = ++t->state_count;
  return t->state_count - 1;
}

int32_t grammar_states_begin(grammar_states *s) {
  const grammar *g = s->g;
  const grammar_rule *r = &g->rules[g->root];
  s->found_count = 0;
  for (int32_t i = 0; i < r->count; i++) {
    int32_t from = rest(s, g->alternatives[r->first + i], 0), count = 0, first = s->t->number_count;
    int rc = from < 0 ? ERR_FULL : search(s, from, &count);
    if (rc == ERR_FULL) return GRAMMAR_STATES_FULL;
    if (count > FOUND_MAX - s->found_count) return GRAMMAR_STATES_DEAD;
    memcpy(s->found + s->found_count, s->t->numbers + first, (size_t)count * sizeof *s->found);
    s->found_count += count;
  }
  return find_state(s, (partial){0});
}

bool grammar_states_ends(const grammar_states *s, int32_t n) {
  const state *x = &s->t->states[n];
  return x->count > 0 && s->t->numbers[x->first] == 0 && x->partial.left == 0;
}

int32_t grammar_states_count(const grammar_states *s) {
  return s->t->state_count;
}

/* --- bytes --- */

/* One more byte of a character: *p becomes what is to come, and [*first, *last] the characters that it can
 * still be. False: there is none. */
static bool take_byte(partial *p, uint8_t byte, uint32_t *first, uint32_t *last) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  bool inside = p->left > 0, follows = (byte & 0xc0) == 0x80;
  if (inside != follows || byte > 0xf4) return false;
  if (inside) {
    p->value = p->value << 6 | (byte & 0x3f);
    p->left--;
  } else {
    p->size = byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    p->left = (uint8_t)(p->size - 1);
    p->value = p->left ? byte & (0x3fu >> p->left) : byte;
  }
  *first = p->value << 6 * p->left;
  *last = *first | ((1u << 6 * p->left) - 1);
  if (*first < least[p->size]) *first = least[p->size];
  if (*last > 0x10ffff) *last = 0x10ffff;
  if (*first >= 0xd800 && *first <= 0xdfff) *first = 0xe000; /* surrogates are no characters */
  if (*last >= 0xd800 && *last <= 0xdfff) *last = 0xd7ff;
  if (p->left == 0) *p = (partial){0};
  return *first <= *last;
}

static bool add_found(grammar_states *s, const int32_t *numbers, int32_t count) {
  if (count > FOUND_MAX - s->found_count) return false;
  memcpy(s->found + s->found_count, numbers, (size_t)count * sizeof *numbers);
  s->found_count += count;
  return true;
}

/* Ways of the state that take a character of [first, last], or what follows it. FULL, or the work. */
static int32_t find_ways(grammar_states *s, const state *x, bool whole, uint32_t first, uint32_t last) {
  tables *t = s->t;
  int32_t work = x->count;
  s->found_count = 0;
  for (int32_t i = 0; i < x->count; i++) {
    int32_t w = t->numbers[x->first + i];
    if (w == 0 || !grammar_class_meets(s->g, s->g->elements[t->ways[w].element].value, first, last)) continue;
    if (whole && !follow(s, w)) return GRAMMAR_STATES_FULL;
    bool ok = whole ? add_found(s, t->numbers + t->ways[w].first, t->ways[w].count) : add_found(s, &w, 1);
    if (whole) work += t->ways[w].visits;
    if (ok && work < (int32_t)WORK_MAX) continue;
    s->found_count = 0;
    return WORK_MAX;
  }
  return work;
}

static uint32_t make_step(grammar_states *s, int32_t from, uint8_t byte) {
  const state x = s->t->states[from];
  partial p = x.partial;
  uint32_t first, last;
  int32_t work = 1, to = GRAMMAR_STATES_DEAD;
  if (take_byte(&p, byte, &first, &last)) {
    work = find_ways(s, &x, p.left == 0, first, last);
    if (work < 0 || (to = find_state(s, p)) < 0) return 0;
  }
  return (uint32_t)(to + 1) | (uint32_t)work << STEP_BITS;
}

int32_t grammar_states_step(grammar_states *s, int32_t from, uint8_t byte, int32_t *work) {
  uint32_t *known = &s->t->steps[from][byte];
  if (!*known && !(*known = make_step(s, from, byte))) return GRAMMAR_STATES_FULL;
  *work = (int32_t)(*known >> STEP_BITS);
  return (int32_t)(*known & STEP_STATE) - 1;
}

/* --- life --- */

static bool take_tables(grammar_states *s) {
  s->t = calloc(1, sizeof *s->t);
  if (!s->t) return false;
  s->t->ways[0] = (way){.element = -1, .parent = -1};
  s->t->way_count = s->t->state_count = 1;
  return true;
}

int grammar_states_open(grammar_states **out, const grammar *g) {
  grammar_states *s = *out = calloc(1, sizeof *s);
  if (!s) return ERR_NOMEM;
  s->g = g;
  if (take_tables(s)) return ERR_OK;
  free(s);
  *out = NULL;
  return ERR_NOMEM;
}

void grammar_states_close(grammar_states *s) {
  if (!s) return;
  free(s->t);
  free(s);
}

/* A way of the old tables, its last parent first. */
static int32_t copy_way(grammar_states *s, const tables *old, int32_t w) {
  int32_t chain[GRAMMAR_STATES_DEPTH_MAX], count = 0, copy = 0;
  for (; w > 0; w = old->ways[w].parent) chain[count++] = old->ways[w].element;
  while (count > 0 && copy >= 0) copy = find_way(s, chain[--count], copy);
  return copy;
}

int32_t grammar_states_clear(grammar_states *s, int32_t from, bool *failed) {
  tables *old = s->t;
  const state x = old->states[from];
  *failed = !take_tables(s);
  if (*failed) {
    s->t = old;
    return GRAMMAR_STATES_DEAD;
  }
  s->found_count = 0;
  bool fits = true;
  for (int32_t i = 0; i < x.count && fits; i++) {
    int32_t w = copy_way(s, old, old->numbers[x.first + i]);
    fits = w >= 0 && add_found(s, &w, 1);
  }
  free(old);
  int32_t to = fits ? find_state(s, x.partial) : GRAMMAR_STATES_DEAD;
  return to < 0 ? GRAMMAR_STATES_DEAD : to;
}
