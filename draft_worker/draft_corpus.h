/* draft_corpus.h - the corpus of the method "suffix": a file of texts, or the answers that a user's ledger
 * keeps, which `tandem' hands to the draft that it starts (common/base/token_file.h). */
#pragma once

#include "common/base/log.h"
#include "draft_worker/draft_arguments.h"
#include "draft_worker/draft_options.h"
#include "draft_worker/drafters/suffix.h"

typedef struct draft_corpus {
  corpus *corpus;
  suffix_source source;
} draft_corpus;

/* Reads --corpus and opens the drafter, which borrows *c; fills the vocabulary of *o, if -m tells it.
 * ERR_ARG:
 * --corpus without -m; ERR_FORMAT: a text that is no UTF-8, or a file of tokens that is damaged; ERR_IO,
 * ERR_NOMEM, and the errors of -m. Of a file with too many tokens the last CORPUS_TOKENS_MAX are kept. */
int draft_corpus_open(draft_corpus *c, const flag_values *a, const logger *log, draft_options *o, drafter *to,
                      err *e);
void draft_corpus_close(draft_corpus *c); /* one that was never opened is allowed */
