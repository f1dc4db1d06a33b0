#include "draft_worker/drafters/suffix.h"

#include "common/speculative/chat_header.h"
#include "common/speculative/lookup_odds.h"
#include <stdlib.h>

/* A row for each class of length: 2, 4, 8, 16, 32 and more tokens. */
#define CLASSES          5
#define NO_CLASS         (-1)
#define LENGTH_OF(class) (2 << (class))

/* Greedy answers of SmolLM2-135M-Instruct, each looked up in those before it: to 96 prompts of Spec-Bench,
 * which have little in common, and to the second ones of bench/data/edit_pairs.jsonl after the first; 12,024
 * positions, smoothed where there were few. */
static const lookup_odds_table measured = {
    {0.24f, 0.14f, 0.02f, 0.39f, 0.13f, 0.05f, 0.68f, 0.50f, 0.13f},
    {0.34f, 0.20f, 0.06f, 0.55f, 0.13f, 0.08f, 0.90f, 0.27f, 0.07f},
    {0.80f, 0.42f, 0.15f, 0.85f, 0.40f, 0.15f, 0.97f, 0.40f, 0.15f},
    {0.93f, 0.45f, 0.20f, 0.97f, 0.45f, 0.15f, 0.98f, 0.45f, 0.15f},
    {0.96f, 0.50f, 0.20f, 0.98f, 0.50f, 0.20f, 0.99f, 0.50f, 0.20f},
};

struct immediate_session {
  const suffix_source *source;
  const int32_t *tokens; /* C */
  int32_t length;        /* of C, all of it observed */
  hash16 hash;
  int32_t prompt_length;
  int32_t
      header; /* tokens of a chat template before the reply, with the end of the turn before; 0: not a chat */
  lookup_odds odds;
};

/* --- candidates --- */

/* The last tokens of C[0..length) followed by path[0..depth), the last one first. */
static int32_t ending_of(const immediate_session *s, int32_t length, const int32_t *path, int32_t depth,
                         int32_t out[CORPUS_ENDING_MAX]) {
  int32_t count = 0;
  for (int32_t i = depth - 1; i >= 0 && count < CORPUS_ENDING_MAX; i--) out[count++] = path[i];
  for (int32_t i = length - 1; i >= 0 && count < CORPUS_ENDING_MAX; i--) out[count++] = s->tokens[i];
  return count;
}

/* An ending of `length` tokens, of which `replied` are of the reply. The header before it does not count, nor
 * what ends in it. */
static int32_t class_of(const immediate_session *s, int32_t length, int32_t replied) {
  int32_t counted = length;
  if (length > replied) counted = length - replied <= s->header ? replied : length - s->header;
  int32_t class = NO_CLASS;
  while (class + 1 < CLASSES && counted >= LENGTH_OF(class + 1)) class ++;
  return class;
}

/* Every token that followed once, by the longest ending before it; occurrences as long as that one agree, or
 * do not. */
static int32_t look_up(const immediate_session *s, int32_t length, const int32_t *path, int32_t depth,
                       lookup_candidate out[DRAFT_CANDIDATES_MAX]) {
  int32_t ending[CORPUS_ENDING_MAX], count = 0, replied = length + depth - s->prompt_length;
  corpus_found found[CORPUS_FOUND_MAX];
  int32_t seen = corpus_find(s->source->corpus, ending, ending_of(s, length, path, depth, ending), found);
  for (int32_t i = 0; i < seen && count < DRAFT_CANDIDATES_MAX; i++) {
    int32_t class = class_of(s, found[i].length, replied), agree = 0, others = 0;
    if (class == NO_CLASS || !lookup_odds_is_new(out, count, found[i].token)) continue;
    for (int32_t k = 0; k < seen && class_of(s, found[k].length, replied) >= class; k++)
      if (found[k].token == found[i].token)
        agree++;
      else
        others++;
    out[count++] = (lookup_candidate){found[i].token, class, lookup_odds_case(agree, others)};
  }
  return count;
}

static int32_t suffix_candidates(immediate_session *s, const int32_t *path, int32_t depth,
                                 draft_candidate *out) {
  lookup_candidate list[DRAFT_CANDIDATES_MAX];
  return lookup_odds_rank(&s->odds, &measured, list, look_up(s, s->length, path, depth, list), out);
}

/* --- the session --- */

/* Prompts repeat themselves less than answers do, so only the answer counts, and of it what comes while the
 * session is open: an answer that goes on in a new process may be in the corpus itself. */
static void suffix_advance(immediate_session *s, const prefix *committed) {
  lookup_candidate list[DRAFT_CANDIDATES_MAX];
  bool grown = s->length > 0 && prefix_has(committed, s->length, s->hash);
  if (!grown) s->odds = (lookup_odds){0};
  s->tokens = committed->tokens;
  for (int32_t i = s->length > s->prompt_length ? s->length : s->prompt_length;
       grown && i < committed->length; i++)
    lookup_odds_learn(&s->odds, list, look_up(s, i, NULL, 0, list), s->tokens[i]);
  s->length = committed->length;
  s->hash = prefix_hash(committed);
}

static void suffix_over(immediate_session *s) {
  if (s->source->learns && s->length > s->prompt_length) corpus_add(s->source->corpus, s->tokens, s->length);
}

static void suffix_close(immediate_session *s) {
  free(s);
}

static immediate_session *suffix_open(void *shared, const prefix *committed, int32_t prompt_length,
                                      const msg_options *options) {
  immediate_session *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->source = shared;
  s->prompt_length = prompt_length;
  s->header = chat_header_length(committed->tokens, committed->length, prompt_length, options->stops,
                                 options->stop_count);
  if (s->header > 0) s->header++;
  suffix_advance(s, committed);
  return s;
}

const immediate_kind suffix_kind = {"suffix",       suffix_open,       suffix_close,
                                    suffix_advance, suffix_candidates, suffix_over};
