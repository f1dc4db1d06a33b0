/* flags_table.h - the table of the command line: the commands, the flags and arguments that each takes, what
 * --help says of them, and where their values go. flags.h reads what was typed. */
#pragma once

#include "common/base/program_flags.h"
#include "orchestrator/ledger/ledger_file.h"
#include "orchestrator/service/request.h"
#include "orchestrator/service/worker_settings.h"
#include <limits.h>

#define FLAGS_SESSIONS_DEFAULT 4 /* of batch and serve */
#define FLAGS_PORT_DEFAULT     8080
#define FLAGS_URL_DEFAULT      "http://127.0.0.1:8080"
#define FLAGS_WAITING_DEFAULT  128
#define FLAGS_SESSIONS_MAX     64
#define FLAGS_KV_BLOCKS_MAX    (INT32_MAX / 16)
#define FLAGS_ARGUMENTS_MAX    3
#define FLAGS_REPEAT_MAX       1000
#define FLAGS_LIST_DEFAULT     20
#define FLAGS_GRAMMAR_FILE_MAX (1 << 20) /* bytes of a grammar or a schema */

typedef enum {
  FLAGS_RUN,
  FLAGS_BATCH,
  FLAGS_API,     /* serve */
  FLAGS_WORKERS, /* of a server, as the next one */
  FLAGS_TOP,
  FLAGS_SERVE,
  FLAGS_BENCH, /* of speculation */
  FLAGS_TOKENIZE,
  FLAGS_DETOKENIZE,
  FLAGS_DOCTOR,
  FLAGS_CONVERT,
  FLAGS_KEYGEN,
  FLAGS_STATUS,
  FLAGS_LIST, /* of sessions, as all below */
  FLAGS_SHOW,
  FLAGS_RESUME,
  FLAGS_ROLLBACK,
  FLAGS_EXPORT,
  FLAGS_IMPORT,
  FLAGS_CHECK,
  FLAGS_REPAIR,
  FLAGS_RELEASE,
  FLAGS_END
} flags_command;

typedef enum { FLAGS_WORKERS_OWN, FLAGS_WORKERS_WAIT } flags_workers;

/* The type of a draft head's matrices: SAME: as the other matrices. */
typedef enum {
  FLAGS_TYPE_F16,
  FLAGS_TYPE_BF16,
  FLAGS_TYPE_Q8_0,
  FLAGS_TYPE_Q4_1,
  FLAGS_TYPE_SAME
} flags_type;

#define FLAGS_HEAD_DRAFT "eagle3,ngram" /* what a head means: prompt lookup adds to it and costs nothing */

typedef struct flags {
  flags_command command;
  request request;         /* all but its prompt; its context is 0 where none was given */
  worker_settings workers; /* model: NULL only where the command can do without */
  const char *template;    /* name of the chat template; NULL: the file's own */
  /* The endpoint at which workers started by others register; NULL: tandem starts its own. */
  const char *listen;
  const char *keys;                                              /* their folder; NULL: the default one */
  const char *host;                                              /* of serve */
  int32_t port;                                                  /* of serve; 0: any free one */
  const char *api_keys, *api_key_file, *admin_key, *cors_origin; /* of serve; NULL: none */
  const char *url;                                               /* of workers and top */
  const char *certificate_file, *key_file;                       /* of serve, for TLS: both or none */
  flags_workers workers_from;                                    /* of serve */
  int32_t waiting_max;                                           /* of serve: requests that wait */
  const char *name;                                              /* of keygen; NULL: the host's */
  /* Lists of bench spec; NULL: workers.draft, the pace and the budget of the request, and its temperature. */
  const char *methods, *trees, *temperatures;
  int32_t repeat;     /* of bench spec */
  const char *ledger; /* a file, "none", or NULL: the default file */
  ledger_mode ledger_mode;
  int32_t wait;     /* seconds without a target until it gives up; 0: for ever */
  int32_t to;       /* of rollback; -1: not given */
  int32_t limit;    /* of list; 0: all */
  int64_t older_us; /* of end: only sessions that have not changed for so long; -1: not given */
  bool insecure_bind, json, compare, once;
  const char *tree;        /* a file for the trees of all verifies; "": stderr; NULL: they are not printed */
  int show;                /* show_when of orchestrator/cli/show.h */
  bool whole;              /* of resume */
  bool forget;             /* of end */
  bool all;                /* of export: every session */
  bool replace;            /* of import: what is there and differs */
  const char *output;      /* of export: a file; NULL: stdout */
  int32_t rows;            /* of convert-head; 0: all */
  bool map;                /* of convert-head */
  const char *calibration; /* of convert-head: a file, or NULL */
  flags_type type, output_type; /* of convert-head */
  const char *arguments[FLAGS_ARGUMENTS_MAX];
  int32_t argument_count;
  bool draft_by_default;   /* nobody has said how to draft */
  char head[PATH_MAX];     /* the one that comes with tandem (default_head_use); "": none */
  bool draft_by_variable;  /* the draft's model or its layers came from the environment, */
  bool method_by_variable; /* so did the draft itself, */
  bool blocks_by_variable; /* so did the number of cache blocks */
  /* A given flag that concerns only programs that tandem starts; NULL: none */
  const char *for_workers;
} flags;

/* clang-format off */
enum { /* of argp */
  KEY_PROMPT = 'p',
  KEY_DRAFT = 256, KEY_MODEL_DRAFT, KEY_DRAFT_LAYERS, KEY_DRAFT_THREADS, KEY_DRAFT_CONTEXT, KEY_DRAFT_TYPE,
  KEY_BUDGET, KEY_PACE, KEY_SELFCHECK, KEY_SINGLE, KEY_COMPARE, KEY_SHOW, KEY_TREE,
  KEY_METHODS, KEY_TREES, KEY_TEMPS, KEY_REPEAT,
  KEY_TEMP, KEY_TOP_K, KEY_TOP_P, KEY_MIN_P, KEY_PENALTY, KEY_PRESENCE, KEY_FREQUENCY, KEY_BIAS, KEY_SEED,
  KEY_GRAMMAR, KEY_GRAMMAR_FILE, KEY_JSON_SCHEMA, KEY_JSON_SCHEMA_FILE,
  KEY_MAX_TOKENS, KEY_STOP, KEY_RAW, KEY_NO_SPECIAL, KEY_SYSTEM, KEY_TEMPLATE, KEY_JSON,
  KEY_THREADS, KEY_DEVICE, KEY_DRAFT_DEVICE, KEY_PIN, KEY_CONTEXT, KEY_SESSIONS, KEY_MATH, KEY_KV,
  KEY_KV_BLOCKS, KEY_KV_MEMORY, KEY_DRAFT_KV_MEMORY, KEY_REPACK_CACHE,
  KEY_HOST, KEY_PORT, KEY_WORKERS, KEY_MAX_WAITING, KEY_API_KEY, KEY_API_KEY_FILE, KEY_ADMIN_KEY, KEY_CORS,
  KEY_SSL_CERT, KEY_SSL_KEY, KEY_URL, KEY_ONCE, KEY_LOG_FORMAT, KEY_TRACE,
  KEY_LISTEN, KEY_WAIT, KEY_INSECURE, KEY_KEYS, KEY_NAME,
  KEY_LEDGER, KEY_LEDGER_MODE,
  KEY_TO, KEY_WHOLE, KEY_DELETE, KEY_LIMIT, KEY_OLDER, KEY_ALL, KEY_OUTPUT, KEY_REPLACE,
  KEY_TYPE, KEY_HEAD_TYPE, KEY_ROWS, KEY_MAP, KEY_CALIBRATION
};
/* clang-format on */

typedef struct flags_table_command {
  const char *name;
  const struct argp_option *options;
  const char *arguments, *text; /* of --help */
  int32_t arguments_min, arguments_max;
  const char *missing; /* the sentence that says what to do when there are fewer */
  bool without_model;  /* it can do without -m */
} flags_table_command;

extern const flags_table_command flags_table_commands[]; /* by flags_command */

/* The flags whose value goes into `flags` as it is. */
extern const program_flag flags_table_values[];
extern const size_t flags_table_value_count;
