/* speculation_figures.h - what speculation was worth over several prompts, each answered plainly and with a
 * draft: sums, ratios, and the table that people read. */
#pragma once

#include "orchestrator/service/completion.h"
#include <jansson.h>
#include <stdio.h>

typedef struct speculation_clock {
  double tokens, us;
} speculation_clock;

typedef struct speculation_figures {
  int32_t prompts, different; /* different: answers whose tokens are not those of plain decoding */
  uint64_t tokens, forwards, verifies, nodes, accepted; /* verifies: forwards that carried nodes */
  uint64_t accepted_per_pos[WIRE_POSITIONS_MAX];
  uint64_t verdicts, ahead_hits, survivors; /* of drafting ahead (wire/message.h) */
  speculation_clock plain, drafted;
} speculation_figures;

/* All but the clocks. Both have ended without an error. */
void speculation_figures_add(speculation_figures *f, const completion *plain, const completion *drafted);
/* The clocks of one prompt, whose answer has so many tokens: microseconds a token; 0: it was not timed. */
void speculation_figures_add_times(speculation_figures *f, int32_t tokens, double plain, double drafted);

/* Each is 0 where there is nothing to divide by. */
double speculation_figures_per_verify(const speculation_figures *f); /* tokens of a verify, bonus included */
double speculation_figures_length(const speculation_figures *f);     /* acceptance length, of all forwards */
double speculation_figures_share(const speculation_figures *f); /* of the tokens that were accepted ones */
double speculation_figures_at(const speculation_figures *f, int32_t position); /* verifies that got so far */
double speculation_figures_ahead(const speculation_figures *f);                /* ahead hits of a verdict */
double speculation_figures_survivors(const speculation_figures *f);            /* of a verdict */
double speculation_figures_speed(const speculation_clock *c); /* tokens a second; 0: too few */
double
speculation_figures_gain(const speculation_figures *f); /* over plain decoding; 0: not known, or no guess */

/* What the figures are of. */
typedef struct speculation_label {
  const char *method, *tree, *category;
  float temperature;
} speculation_label;

void speculation_figures_print_head(FILE *to);
void speculation_figures_print(FILE *to, const speculation_label *l, const speculation_figures *f);
/* "by position: 61 % 40 % ..." for as many positions as fit a line. */
void speculation_figures_print_positions(FILE *to, const speculation_figures *f);
/* "verdicts that left nodes for the next step: ..."; nothing where no draft was attached. */
void speculation_figures_print_ahead(FILE *to, const speculation_figures *f);
json_t *speculation_figures_json(const speculation_label *l, const speculation_figures *f);
