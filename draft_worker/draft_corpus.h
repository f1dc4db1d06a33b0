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

/* Reads --corpus and opens the drafter, which borrows *c; fills the vocabulary of *o, if -m tells it. A file
 * that cannot be read, or is neither text in UTF-8 nor whole, is logged as an error, and the draft goes on
 * without it. Of a text the last 16 MiB are read, and of many tokens the last CORPUS_TOKENS_MAX - 1 kept.
 * ERR_ARG: --corpus without -m; ERR_NOMEM, and the errors of -m. */
int draft_corpus_open(draft_corpus *c, const flag_values *a, const logger *log, draft_options *o, drafter *to,
                      err *e);
void draft_corpus_close(draft_corpus *c); /* one that was never opened is allowed */
