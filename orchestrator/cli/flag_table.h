/* flag_table.h - which flags and arguments each command takes, what --help says of them, and where their
 * values go. flags.c reads them. */
#pragma once

#include "common/base/program_flags.h"
#include "orchestrator/cli/flags.h"

/* clang-format off */
enum { /* of argp */
  FLAG_PROMPT = 'p',
  FLAG_DRAFT = 256, FLAG_MODEL_DRAFT, FLAG_DRAFT_LAYERS, FLAG_DRAFT_THREADS, FLAG_DRAFT_CONTEXT,
  FLAG_BUDGET, FLAG_PACE, FLAG_SELFCHECK, FLAG_SINGLE, FLAG_COMPARE,
  FLAG_TEMP, FLAG_TOP_K, FLAG_TOP_P, FLAG_MIN_P, FLAG_PENALTY, FLAG_SEED,
  FLAG_MAX_TOKENS, FLAG_STOP, FLAG_RAW, FLAG_NO_SPECIAL, FLAG_SYSTEM, FLAG_TEMPLATE, FLAG_JSON,
  FLAG_THREADS, FLAG_PIN, FLAG_CONTEXT, FLAG_SESSIONS, FLAG_MATH, FLAG_KV, FLAG_KV_BLOCKS, FLAG_REPACK_CACHE,
  FLAG_LISTEN, FLAG_WAIT, FLAG_INSECURE, FLAG_LEDGER,
  FLAG_TO, FLAG_WHOLE, FLAG_DELETE, FLAG_LIMIT, FLAG_OLDER
};
/* clang-format on */

typedef struct flag_table_command {
  const char *name;
  const struct argp_option *options;
  const char *arguments, *text; /* of --help */
  int32_t arguments_min, arguments_max;
  const char *missing; /* what to do when there are fewer */
  bool without_model;  /* it can do without -m */
} flag_table_command;

extern const flag_table_command flag_table_commands[]; /* by flags_command */

/* Those whose value goes into `flags` as it is. */
extern const program_flag flag_table_values[];
extern const size_t flag_table_value_count;
