/* ledger_writer.h - the thread that writes the ledger's file. It takes what is new of all sessions into one
 * transaction (group commit), one every LEDGER_GROUP_US. Beginnings and ends of sessions are written at once,
 * and so is a session with LEDGER_GROUP_TOKENS that are not written: what is not written is not acknowledged,
 * and a target runs only so far ahead of what is. A transaction that fails is tried again, and nothing is
 * missing when it succeeds. What a committed one holds survives the death of this process; ledger_mode
 * (ledger_file.h) says what survives a power cut. */
#pragma once

#include "common/base/log.h"
#include "orchestrator/ledger/ledger_backlog.h"

#define LEDGER_GROUP_US          50000
#define LEDGER_GROUP_TOKENS      64      /* a quarter of the credit that a target has */
#define LEDGER_WAIT_US           5000000 /* how long a call waits for the file where it must */
#define LEDGER_RETRY_US          1000000
#define LEDGER_HEARTBEAT_US      1000000 /* how often the row of this process is renewed while sessions run */
#define LEDGER_IDLE_HEARTBEAT_US 5000000

typedef struct ledger_writer_options { /* everything is borrowed until ledger_writer_close */
  ledger_backlog *backlog;
  sqlite3 *db;
  const char *path;
  ledger_process who;
  const logger *log;
  void (*on_durable)(void *context); /* on the writer's thread, after each transaction */
  void *context;
} ledger_writer_options;

typedef struct ledger_writer ledger_writer;

/* Writes the row of this process, so that it exists before any session that the process owns. */
int ledger_writer_open(ledger_writer **out, const ledger_writer_options *o, err *e);
int ledger_writer_start(ledger_writer *w, err *e); /* starts the thread */
/* Writes what is left, if that is possible, and ends the thread. Before the database is closed; NULL is
 * allowed. */
void ledger_writer_close(ledger_writer *w);
