/* grammar_states.h - the states of a grammar: sets of ways to go on, and the steps between them by one byte.
 *
 * A way is an element that is expected next, and the way that goes on behind the rule that it stands in (its
 * parent). Way 0 is the end of the answer. Ways and states are numbered as they are met, up to a bound: then
 * the tables are full, and grammar_states_clear keeps one state alone. What a step leads to, and its work, do
 * not depend on what is in the tables, only whether they are full does. */
#pragma once

#include "common/grammar/grammar.h"

#define GRAMMAR_STATES_DEAD 0    /* the state without ways */
#define GRAMMAR_STATES_FULL (-1) /* the tables are full */

#define GRAMMAR_STATES_WAYS_MAX  1024 /* ways of a state */
#define GRAMMAR_STATES_DEPTH_MAX 512  /* parents behind a way */

typedef struct grammar_states grammar_states;

int grammar_states_open(grammar_states **out, const grammar *g); /* borrows g; ERR_NOMEM */
void grammar_states_close(grammar_states *s);                    /* NULL is allowed */

/* In each, GRAMMAR_STATES_FULL is possible. */
int32_t grammar_states_begin(grammar_states *s); /* of an empty answer */
/* After one more byte. *work: how many ways were looked at, the same each time. */
int32_t grammar_states_step(grammar_states *s, int32_t state, uint8_t byte, int32_t *work);

/* May the answer end here? */
bool grammar_states_ends(const grammar_states *s, int32_t state);

/* Empties the tables but for this state, and returns its new number. ERR_NOMEM as DEAD, with *failed. */
int32_t grammar_states_clear(grammar_states *s, int32_t state, bool *failed);
int32_t grammar_states_count(const grammar_states *s); /* states so far; their numbers are below */
