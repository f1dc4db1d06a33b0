/* ledger.h - the truth: what every session's tokens are. A token is logged before a client sees it.
 *
 * An interface with a memory backend; a database comes behind the same calls. Append-only but for the cut at the
 * end of an answer. */
#pragma once

#include "common/base/err.h"
#include "wire/message.h"

typedef struct ledger_entry { /* one session */
  uint64_t session;
  uint64_t hash_seed;
  int32_t prompt_length;
  uint32_t epoch;        /* the highest that may have been sent */
  const int32_t *tokens; /* [length], prompt and output; until the next call on this session */
  int32_t length;
  bool ended;
} ledger_entry;

typedef struct ledger ledger;
struct ledger {
  void *self;
  int (*begin)(void *self, uint64_t session, uint64_t hash_seed, const int32_t *prompt, int32_t prompt_length);
  /* Recorded before the first send of that epoch. */
  int (*epoch)(void *self, uint64_t session, uint32_t epoch);
  /* tokens[count] at positions [position, position + count): position must be the present length. */
  int (*append)(void *self, uint64_t session, int32_t position, const int32_t *tokens, int32_t count);
  /* The answer is over; tokens beyond `length` were cut by a stop string. */
  int (*end)(void *self, uint64_t session, int32_t length);
  bool (*read)(void *self, uint64_t session, ledger_entry *out);
  void (*forget)(void *self, uint64_t session);
  void (*close)(void *self);
};

int ledger_memory(ledger *out); /* ERR_NOMEM; released by out->close(out->self) */
