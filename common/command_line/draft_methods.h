/* draft_methods.h - the drafters that --draft names, as "ngram", "eagle3,ngram" or "replay:FILE:RATE[:S]":
 * both tandem and tandem-draft take the same list. */
#pragma once

#include "common/base/err.h"
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum {
  DRAFT_NGRAM,
  DRAFT_SUFFIX,
  DRAFT_MODEL,
  DRAFT_EAGLE3,
  DRAFT_REPLAY,
  DRAFT_METHODS_MAX
} draft_method;

typedef struct draft_methods {
  draft_method
      list[DRAFT_METHODS_MAX]; /* in the order of the text, each one once; ngram stands beside suffix */
  int32_t count;
  const char *replay; /* FILE:RATE[:S], the end of the text; NULL: it does not name replay */
} draft_methods;

/* The text is borrowed. ERR_ARG: it is no such list, or names both model and eagle3, which would compute in
 * turns. */
int draft_methods_parse(draft_methods *out, const char *text, err *e);
/* Do --corpus and --corpus-learn go with the list? `typed`: one of them stands on the command line. ERR_ARG.
 */
int draft_methods_check_corpus(const draft_methods *m, bool corpus, bool learns, bool typed, err *e);
bool draft_methods_have(const draft_methods *m, draft_method method);
/* Does a list that can be parsed name it? */
bool draft_methods_name(const char *text, draft_method method);
/* ... or one that computes, with a model or a head? */
bool draft_methods_compute(const char *text);
/* FILE of FILE:RATE[:S], which may hold colons itself. False: the argument is no such thing. */
bool draft_methods_replay_file(const char *argument, char out[PATH_MAX]);
