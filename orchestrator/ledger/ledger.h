/* ledger.h - the truth: what every session's tokens are. A token is logged before a client sees it.
 *
 * An interface with two backends: in memory, and in a file that other processes read and that outlives this
 * one (ledger_file.h). Append-only but for the cut at the end of an answer. All calls come from one thread.
 */
#pragma once

#include "common/base/err.h"
#include "wire/message.h"

typedef struct ledger_record { /* how a session begins, or goes on; borrowed for the call */
  uint64_t session;
  uint64_t hash_seed;
  const int32_t *tokens; /* [length]: the prompt, then the output that is in the ledger already */
  int32_t length, prompt_length;
  uint32_t epoch; /* 0: a new session; else it goes on, and this is the highest that may have been sent */
  const msg_options *options; /* NULL: not kept */
  const char *about; /* what the client wants kept with it, JSON; NULL: nothing, or what is there already */
} ledger_record;

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
  int (*begin)(void *self, const ledger_record *r);
  /* Recorded before the first send of that epoch; the first one counts with the session's beginning: of one
   * that goes on it is asked for again when that is durable. ERR_GONE: the session is another process's by
   * now; ERR_IO. */
  int (*epoch)(void *self, uint64_t session, uint32_t epoch);
  /* tokens[count] at positions [position, position + count): position must be the present length. */
  int (*append)(void *self, uint64_t session, int32_t position, const int32_t *tokens, int32_t count);
  /* Who decodes from here on. */
  int (*numerics)(void *self, uint64_t session, const char *id);
  /* The answer is over; tokens beyond `length` were cut by a stop string. Stats as far as they are known. */
  int (*end)(void *self, uint64_t session, int32_t length, wire_finish finish, const msg_stats *stats);
  /* How many tokens of the session are where the death of this process cannot reach them: those may be shown.
   * 0: not even its beginning, so nothing may be sent. */
  int32_t (*durable)(void *self, uint64_t session);
  bool (*read)(void *self, uint64_t session, ledger_entry *out);
  /* No more calls about this session. Memory forgets it; a file keeps it. */
  void (*forget)(void *self, uint64_t session);
  void (*close)(void *self);
};

int ledger_memory(ledger *out); /* ERR_NOMEM; released by out->close(out->self) */
