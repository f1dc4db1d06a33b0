#include "common/base/program_variables.h"

#include "common/base/llama_flags.h"
#include "common/base/log.h"
#include "common/base/program_flags.h"
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX         "TANDEM_"
#define CHECKED        PREFIX "VARIABLES_CHECKED" /* set for the programs that this one starts */
#define NAME_MAX_BYTES 64                         /* a longer one is near to none */

/* Every flag of every program, which may stand in the environment of any of them
 * (tests/integration/test_cli_flags.py compares). */
static const char *const flags[] = {
    /* of tandem */
    "model", "system", "chat-template", "raw", "no-special", "max-tokens", "max-waiting", "stop", "json",
    "temp", "top-k", "top-p", "min-p", "repeat-penalty", "presence-penalty", "frequency-penalty",
    "logit-bias", "grammar", "grammar-file", "json-schema", "json-schema-file", "seed", "draft",
    "model-draft", "draft-layers", "draft-threads", "draft-ctx", "budget", "pace", "selfcheck",
    "force-single-token", "threads", "pin", "ctx", "kv", "kv-blocks", "math", "repack-cache", "ledger",
    "ledger-mode", "verbose", "listen", "wait", "insecure-bind", "sessions", "to", "delete", "whole",
    "compare", "limit", "older-than", "device", "draft-device", "list-devices", "kv-memory",
    "draft-kv-memory", "self-test", "host", "port", "workers", "api-key", "api-key-file", "admin-key", "url",
    "once", "cors-origin", "ssl-cert-file", "ssl-key-file",
    /* of the workers and tandem-bench */
    "orchestrator", "bind", "advertise", "isa", "log-level", "log-format", "trace", "counters",
    "record-steps", "parent", "replay-seed", "rows", "turns", "repetitions", "show", "methods", "repeat",
    "tree", "draft-type", "map", "busy-poll", "type", "head-type", "calibration", "head", "candidates",
    "draft-outputs", "keys", "name", "all", "output", "replace", "concurrency", "num-prompts", "request-rate",
    "endpoint", "speculation", "time-limit"};
/* Read by tests and scripts, and what tests make go wrong. */
static const char *const others[] = {"bin",         "subset",       "peer",      "fault",      "far",
                                     "test-device", "test-devices", "cuda-lose", "cuda-graphs"};
enum { FLAG_COUNT = sizeof flags / sizeof *flags, OTHER_COUNT = sizeof others / sizeof *others };

/* SOME_NAME[size] as a flag's some-name, and the way back. */
static void to_flag(const char *name, size_t size, char *out) {
  for (size_t i = 0; i < size; i++) out[i] = name[i] == '_' ? '-' : (char)tolower((unsigned char)name[i]);
  out[size] = 0;
}

static void to_variable(const char *flag, char *out, size_t size) {
  snprintf(out, size, PREFIX "%s", flag);
  for (char *c = out; *c; c++) *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
}

static bool is_known(const char *flag) {
  for (int i = 0; i < FLAG_COUNT; i++)
    if (strcmp(flags[i], flag) == 0) return true;
  for (int i = 0; i < OTHER_COUNT; i++)
    if (strcmp(others[i], flag) == 0) return true;
  return false;
}

static const char *meant_by(const char *flag) {
  char typed[NAME_MAX_BYTES + 3];
  int size = snprintf(typed, sizeof typed, "--%s", flag);
  const llama_flag *h = llama_flags_find(typed, (size_t)size);
  return h && h->ours ? h->ours + 2 : program_nearest(flag, flags, FLAG_COUNT);
}

static void check(const logger *log, const char *variable, size_t size) {
  char flag[NAME_MAX_BYTES + 1] = "", ours[sizeof PREFIX + NAME_MAX_BYTES];
  size_t prefix = strlen(PREFIX);
  if (size - prefix <= NAME_MAX_BYTES) to_flag(variable + prefix, size - prefix, flag);
  bool upper = true; /* Tandem_Temp and TANDEM_temp are read by nobody */
  for (size_t i = prefix; i < size; i++) upper &= !islower((unsigned char)variable[i]) && variable[i] != '-';
  if (upper && is_known(flag)) return;
  const char *near = *flag ? is_known(flag) ? flag : meant_by(flag) : NULL;
  if (near) to_variable(near, ours, sizeof ours);
  log_line(log, LOG_WARNING, "nobody reads the environment variable %.*s%s%s%s", (int)size, variable,
           near ? ": did you mean " : "", near ? ours : "", near ? "?" : "");
}

void program_check_variables(const char *program) {
  const logger log = {program, LOG_WARNING};
  if (getenv(CHECKED)) return;
  for (char **v = environ; v && *v; v++)
    if (strncmp(*v, PREFIX, strlen(PREFIX)) == 0) check(&log, *v, strcspn(*v, "="));
  setenv(CHECKED, "1", 1);
}
