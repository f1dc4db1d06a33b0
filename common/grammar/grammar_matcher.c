#include "common/grammar/grammar_matcher.h"

#include "common/grammar/grammar_states.h"
#include <stdlib.h>
#include <string.h>

#define MASKS 32 /* sets of tokens that are kept */

typedef struct mask {
  int32_t state;  /* DEAD: none */
  uint32_t *bits; /* of the vocabulary; NULL: not needed so far */
} mask;

struct grammar_matcher {
  grammar *g;
  grammar_states *states;
  const grammar_vocabulary *v;
  int32_t *stops, stop_count;
  int32_t *held, held_count, held_room; /* the tokens that have led to the state */
  int32_t state;
  mask masks[MASKS];
  int32_t next_mask;
};

/* --- life --- */

static int copy_stops(grammar_matcher *m, const int32_t *stops, int32_t count) {
  m->stops = malloc((size_t)count * sizeof *stops);
  if (!m->stops) return ERR_NOMEM;
  for (int32_t i = 0; i < count; i++)
    if (stops[i] >= 0 && stops[i] < m->v->token_count) m->stops[m->stop_count++] = stops[i];
  return ERR_OK;
}

int grammar_matcher_open(grammar_matcher **out, grammar *g, const grammar_vocabulary *v, const int32_t *stops,
                         int32_t stop_count, err *e) {
  grammar_matcher *m = *out = NULL;
  int rc = stop_count > 0 ? ERR_OK : err_set(e, ERR_ARG, "a grammar needs a token that ends the answer");
  if (rc == ERR_OK && !(m = calloc(1, sizeof *m))) rc = err_set(e, ERR_NOMEM, "no memory for a grammar");
  if (rc) {
    grammar_free(g);
    return rc;
  }
  m->g = g;
  m->v = v;
  if (copy_stops(m, stops, stop_count) || grammar_states_open(&m->states, g))
    rc = err_set(e, ERR_NOMEM, "no memory for a grammar");
  if (rc == ERR_OK && (m->state = grammar_states_begin(m->states)) <= GRAMMAR_STATES_DEAD)
    rc = err_set(e, ERR_LIMIT,
                 "the grammar is too large: an answer may begin in more than %d ways, or in none",
                 GRAMMAR_STATES_WAYS_MAX);
  if (rc)
    grammar_matcher_close(m);
  else
    *out = m;
  return rc;
}

void grammar_matcher_close(grammar_matcher *m) {
  if (!m) return;
  for (int32_t i = 0; i < MASKS; i++) free(m->masks[i].bits);
  grammar_states_close(m->states);
  grammar_free(m->g);
  free(m->stops);
  free(m->held);
  free(m);
}

/* --- states --- */

/* Makes room in the tables: only m->state stays. */
static bool clear(grammar_matcher *m) {
  bool failed;
  int32_t state = grammar_states_clear(m->states, m->state, &failed);
  if (failed) return false;
  m->state = state;
  for (int32_t i = 0; i < MASKS; i++) m->masks[i].state = GRAMMAR_STATES_DEAD;
  return true;
}

static bool is_stop(const grammar_matcher *m, int32_t token) {
  for (int32_t i = 0; i < m->stop_count; i++)
    if (m->stops[i] == token) return true;
  return false;
}

static int32_t walk_once(grammar_matcher *m, int32_t token) {
  size_t size;
  int32_t state = m->state, work;
  if (token < 0 || token >= m->v->token_count) return GRAMMAR_STATES_DEAD;
  const uint8_t *bytes = grammar_vocabulary_bytes(m->v, token, &size);
  for (size_t i = 0; i < size && state > GRAMMAR_STATES_DEAD; i++)
    state = grammar_states_step(m->states, state, bytes[i], &work);
  return size > 0 ? state : GRAMMAR_STATES_DEAD;
}

/* The state after one more token; m->state stays, though it may get another number. */
static int32_t walk(grammar_matcher *m, int32_t token) {
  int32_t state = is_stop(m, token) ? GRAMMAR_STATES_DEAD : walk_once(m, token);
  if (state == GRAMMAR_STATES_FULL && clear(m)) state = walk_once(m, token);
  return state > GRAMMAR_STATES_DEAD ? state : GRAMMAR_STATES_DEAD;
}

static bool begin(grammar_matcher *m) {
  m->held_count = 0;
  m->state = grammar_states_begin(m->states);
  if (m->state >= 0) return true;
  m->state = GRAMMAR_STATES_DEAD;
  if (clear(m)) m->state = grammar_states_begin(m->states);
  return m->state >= 0;
}

static bool holds(const grammar_matcher *m, const int32_t *tokens, int32_t count) {
  return count == 0 || memcmp(m->held, tokens, (size_t)count * sizeof *tokens) == 0;
}

static bool reserve(grammar_matcher *m, int32_t count) {
  int32_t room = m->held_room ? m->held_room : 256;
  if (count <= m->held_room) return true;
  while (room < count) room *= 2;
  int32_t *more = realloc(m->held, (size_t)room * sizeof *more);
  if (!more) return false;
  m->held = more;
  m->held_room = room;
  return true;
}

int grammar_matcher_move(grammar_matcher *m, const int32_t *answer, int32_t answer_count, const int32_t *path,
                         int32_t path_count) {
  int32_t count = answer_count + path_count;
  int32_t both = m->held_count < answer_count ? m->held_count : answer_count;
  if (!reserve(m, count)) return ERR_NOMEM;
  bool goes_on =
      m->held_count <= count && holds(m, answer, both) &&
      (m->held_count <= answer_count ||
       memcmp(m->held + answer_count, path, (size_t)(m->held_count - answer_count) * sizeof *path) == 0);
  if (!goes_on && !begin(m)) return ERR_NOMEM;
  while (m->held_count < count) {
    int32_t i = m->held_count, token = i < answer_count ? answer[i] : path[i - answer_count];
    m->state = walk(m, token);
    m->held[m->held_count++] = token;
  }
  return ERR_OK;
}

bool grammar_matcher_allows(grammar_matcher *m, int32_t token) {
  if (is_stop(m, token)) return grammar_states_ends(m->states, m->state);
  return walk(m, token) > GRAMMAR_STATES_DEAD;
}

/* --- the tokens that a state allows --- */

static void set_bit(uint32_t *bits, int32_t token) {
  bits[token / 32] |= 1u << token % 32;
}

typedef enum { MASK_MADE, MASK_TABLES_FULL, MASK_TOO_MUCH } mask_outcome;

/* Walks the vocabulary's tree as far as the grammar goes along. */
static mask_outcome fill(grammar_matcher *m, uint32_t *bits) {
  const grammar_vocabulary *v = m->v;
  int32_t at[GRAMMAR_TOKEN_MAX + 1] = {m->state}, work = 0, more;
  for (int32_t i = 0; i < v->node_count && m->state != GRAMMAR_STATES_DEAD;) {
    const grammar_node *n = &v->nodes[i];
    int32_t state = grammar_states_step(m->states, at[n->depth - 1], n->byte, &more);
    if (state == GRAMMAR_STATES_FULL) return MASK_TABLES_FULL;
    work += more;
    if (work > GRAMMAR_MATCHER_WORK_MAX) return MASK_TOO_MUCH;
    at[n->depth] = state;
    for (int32_t k = 0; k < n->count && state != GRAMMAR_STATES_DEAD; k++)
      set_bit(bits, v->ordered[n->first + k]);
    i = state == GRAMMAR_STATES_DEAD ? n->next : i + 1;
  }
  for (int32_t i = 0; i < m->stop_count; i++) {
    bits[m->stops[i] / 32] &= ~(1u << m->stops[i] % 32);
    if (grammar_states_ends(m->states, m->state)) set_bit(bits, m->stops[i]);
  }
  return MASK_MADE;
}

static mask *mask_of(grammar_matcher *m, int32_t state) {
  for (int32_t i = 0; i < MASKS; i++)
    if (state != GRAMMAR_STATES_DEAD && m->masks[i].state == state) return &m->masks[i];
  return NULL;
}

const uint32_t *grammar_matcher_mask(grammar_matcher *m) {
  mask *known = mask_of(m, m->state);
  size_t words = (size_t)(m->v->token_count + 31) / 32;
  if (known) return known->bits;
  mask *to = &m->masks[m->next_mask];
  m->next_mask = (m->next_mask + 1) % MASKS;
  to->state = GRAMMAR_STATES_DEAD;
  if (!to->bits) to->bits = malloc(words * sizeof *to->bits);
  if (!to->bits) return NULL;
  memset(to->bits, 0, words * sizeof *to->bits);
  mask_outcome outcome = fill(m, to->bits);
  if (outcome == MASK_TABLES_FULL && clear(m)) {
    memset(to->bits, 0, words * sizeof *to->bits);
    outcome = fill(m, to->bits);
  }
  if (outcome != MASK_MADE) return NULL;
  to->state = m->state;
  return to->bits;
}

/* --- a choice --- */

static bool filters(const sampler_options *o) {
  return sampler_scale(o) != 0 && (o->top_k > 0 || o->top_p < 1 || o->min_p > 0);
}

/* The best token that is allowed, if it is one of the best of all; else -1. */
static int32_t pick_best(grammar_matcher *m, sampler *s, const sampler_options *o, const sampler_row *row,
                         const float *logits, int32_t position) {
  ranking_token best[SAMPLER_RANKED_MAX];
  int32_t count = sampler_rank(s, o, row, logits, position, SAMPLER_RANKED_MAX, best);
  for (int32_t i = 0; i < count; i++)
    if (grammar_matcher_allows(m, best[i].token)) return best[i].token;
  return -1;
}

int32_t grammar_matcher_pick(grammar_matcher *m, sampler *s, const sampler_options *o, const sampler_row *row,
                             const float *logits, int32_t position) {
  sampler_row masked = *row;
  int32_t token = filters(o) ? -1 : pick_best(m, s, o, row, logits, position);
  if (token >= 0) return token;
  masked.mask = grammar_matcher_mask(m);
  if (!masked.mask) return -1;
  bool any = false;
  for (int32_t i = 0; i < (m->v->token_count + 31) / 32 && !any; i++) any = masked.mask[i] != 0;
  return any ? sampler_pick(s, o, &masked, logits, position) : -1;
}
