/* ranking.h - a list of the best tokens so far. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct ranking_token {
  int32_t token;
  float value; /* logit * scale + noise; where scale is 0: the logit */
} ranking_token;

/* The best `room` so far, the best first; the rest of the list is of no token. */
typedef struct ranking_list {
  ranking_token *list;
  int32_t room;
} ranking_list;

static inline void ranking_init(ranking_list *r, ranking_token *list, int32_t room) {
  *r = (ranking_list){list, room};
  for (int32_t i = 0; i < room; i++) list[i] = (ranking_token){INT32_MAX, -INFINITY};
}

/* By value, then the lower id. */
static inline bool ranking_precedes(const ranking_token *a, const ranking_token *b) {
  return a->value > b->value || (a->value == b->value && a->token < b->token);
}

/* A value below this changes nothing. */
static inline float ranking_least(const ranking_list *r) {
  return r->list[r->room - 1].value;
}

/* A NaN changes nothing, either. */
static inline void ranking_challenge(ranking_list *r, float value, int32_t token) {
  const ranking_token x = {token, value};
  int32_t i = r->room - 1;
  if (!ranking_precedes(&x, &r->list[i])) return;
  for (; i > 0 && ranking_precedes(&x, &r->list[i - 1]); i--) r->list[i] = r->list[i - 1];
  r->list[i] = x;
}

static inline int32_t ranking_count(const ranking_list *r) {
  int32_t n = 0;
  while (n < r->room && r->list[n].token != INT32_MAX) n++;
  return n;
}
