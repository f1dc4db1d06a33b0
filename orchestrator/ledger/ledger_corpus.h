/* ledger_corpus.h - the answers of a ledger as a file of tokens (common/base/token_file.h), for a draft to
 * look up what they repeat. */
#pragma once

#include "common/base/err.h"
#include <stdint.h>

/* Writes prompts and answers of the sessions of this model, at most `tokens_max` tokens, whole sessions, the
 * newest last, to `to`, which only this user can read. Checksums are not looked at: a corpus may hold
 * anything. *tokens: how many it has. ERR_GONE: there is no such ledger; ERR_IO, ERR_NOMEM, and what
 * ledger_database_open says. */
int ledger_corpus_write(const char *ledger, const char *model, int64_t tokens_max, const char *to,
                        int64_t *tokens, err *e);
