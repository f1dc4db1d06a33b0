/* ledger_folder.h - a ledger in a folder of its own, written through its interface and read by queries, for
 * the tests of the ledger room. */
#pragma once

#include "orchestrator/ledger/ledger_file.h"
#include "orchestrator/ledger/ledger_change.h"
#include "orchestrator/ledger/ledger_query.h"
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/patience.h"
#include "tests/support/scratch.h"

#ifdef __SANITIZE_THREAD__
#define NEEDS_FORK() skip() /* TSan knows no threads after a fork */
#else
#define NEEDS_FORK() (void)0
#endif

#define SESSION UINT64_C(0xfedcba9876543210)

static const int32_t prompt[] = {1, 2, 3};
static const int32_t stops[] = {2, 7};
static const msg_options request = {.temperature = 0.8f,
                                    .top_p = 0.95f,
                                    .min_p = 1.0f / 3,
                                    .repeat_penalty = 1.1f,
                                    .top_k = 40,
                                    .seed = UINT64_MAX - 5,
                                    .choice = 1,
                                    .max_tokens = 100,
                                    .context = 4096,
                                    .stops = stops,
                                    .stop_count = 2,
                                    .budget = 15,
                                    .lockstep = true,
                                    .selfcheck = 3};

typedef struct own_folder { /* a folder of its own */
  char name[SCRATCH_MAX], path[SCRATCH_MAX + 20];
} own_folder;

int set_up(void **state);

int tear_down(void **state);

void nothing(void *context);

ledger opened(const char *path);

void begin(ledger *l, uint64_t session);

/* Output token i is 10 + i. */
void append(ledger *l, uint64_t session, int32_t from, int32_t count);

bool comes_to(ledger *l, uint64_t session, int32_t length);

sqlite3 *open_database(const char *path);

int64_t number(sqlite3 *db, const char *sql);

void exec(sqlite3 *db, const char *sql);

void load(sqlite3 *db, uint64_t id, ledger_session *out);

void expect_tokens(const ledger_session *s, int32_t output);

/* A session of the file goes on. */
void resume(ledger *l, const ledger_session *s);

void expect_refused(const char *path, int code, const char *phrase);

void finished(const char *path, uint64_t session, int32_t output);

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
