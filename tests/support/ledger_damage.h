/* ledger_damage.h - a ledger of many sessions as bytes, seeded damages of it, and what a reader gets. For the
 * tests of check and repair. */
#pragma once

#include "orchestrator/ledger/ledger_import.h"
#include "tests/support/ledger_folder.h"

enum { SESSIONS = 24, PROMPT_MAX = 700, OUTPUT_MAX = 1400, BYTES_MAX = 1 << 19 };

typedef struct bytes {
  uint8_t data[BYTES_MAX];
  size_t size; /* 0: there is no such file */
} bytes;

/* Of the right ledger: some of it is in its journal alone. */
extern bytes whole_file, whole_wal;
extern const bytes nothing_there;

void read_bytes(const char *path, const char *suffix, bytes *out);

void write_bytes(const char *path, const char *suffix, const bytes *b);

/* The last ones are in the journal alone, as after a kill. */
void make_whole(const char *path);

typedef struct readable { /* what a reader gets of each session */
  bool whole[SESSIONS];
  int count; /* of whole ones */
} readable;

readable read_ledger(const char *path);

typedef enum {
  DAMAGE_FLIP,     /* of a few bits */
  DAMAGE_PAGE,     /* a page of other bytes */
  DAMAGE_ZEROS,    /* a page of zeros */
  DAMAGE_CUT,      /* the file ends early */
  DAMAGE_SQL,      /* a row that is wrong, or missing, in a file that is right */
  DAMAGE_WAL_FLIP, /* of the journal: SQLite reads it up to there */
  DAMAGE_WAL_GONE, /* the same from its beginning */
  DAMAGE_COUNT
} damage_kind;

/* True: what is read has been changed for certain. */
bool damage(const char *path, damage_kind kind, uint64_t *seed);

/* The journal's end is where its damage begins: what is read then is as it was before. */
bool is_older_state(damage_kind kind);
