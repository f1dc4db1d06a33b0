/* ledger.h - the truth about every session: which tokens it has. A token is logged before a client sees it.
 *
 * This is an interface with two implementations: in memory (ledger_memory below), and in a file that other
 * processes read and that outlives this one (ledger_file.h). A session's tokens only grow, except that `end`
 * may cut some of them. All calls come from one thread. */
#pragma once

#include "common/base/err.h"
#include "wire/message.h"

typedef struct ledger_record { /* how a session begins or goes on; borrowed for the call */
  uint64_t session;
  uint64_t hash_seed;
  const int32_t *tokens; /* [length]: the prompt, then the output that is in the ledger already */
  int32_t length, prompt_length;
  /* 0: a new session; otherwise it goes on, and this is the highest that may have been sent */
  uint32_t epoch;
  const msg_options *options; /* NULL: not kept */
  const char *about; /* JSON that the client wants kept with it; NULL: nothing, or what is there already */
} ledger_record;

typedef struct ledger_entry { /* one session */
  uint64_t session;
  uint64_t hash_seed;
  int32_t prompt_length;
  uint32_t epoch;        /* the highest that may have been sent */
  const int32_t *tokens; /* [length], prompt and output; valid until the next call about this session */
  int32_t length;
  bool ended;
} ledger_entry;

typedef struct ledger ledger;
struct ledger {
  void *self;
  int (*begin)(void *self, const ledger_record *r);
  /* Records an epoch before anything is sent in it. The first epoch of a session becomes durable together
   * with its beginning; of a session that goes on it is recorded again then. ERR_GONE: the session belongs to
   * another process by now; ERR_IO. */
  int (*epoch)(void *self, uint64_t session, uint32_t epoch);
  /* Appends tokens[count] at this position, which must be the present length. */
  int (*append)(void *self, uint64_t session, int32_t position, const int32_t *tokens, int32_t count);
  /* The numerics id of the target that decodes from here on. */
  int (*numerics)(void *self, uint64_t session, const char *id);
  /* The session has ended; tokens beyond `length` were cut by a stop string. Stats as far as they are known.
   */
  int (*end)(void *self, uint64_t session, int32_t length, wire_finish finish, const msg_stats *stats);
  /* How many tokens of the session survive the death of this process: these may be shown and acknowledged. 0:
   * not even its beginning, so nothing may be sent. */
  int32_t (*durable)(void *self, uint64_t session);
  /* The session belongs to another process by now: nothing more of it will become durable here. */
  bool (*lost)(void *self, uint64_t session);
  bool (*read)(void *self, uint64_t session, ledger_entry *out);
  /* No more calls about this session follow. Memory forgets it; a file keeps it. */
  void (*forget)(void *self, uint64_t session);
  void (*close)(void *self);
};

int ledger_memory(ledger *out); /* ERR_NOMEM; released by out->close(out->self) */
