/* message.h - every message of the protocol as a C struct. wire/PROTOCOL.md is the contract; these structs
 * are its form in memory. Arrays and strings of a received message point into the decoder's arena; those of a
 * message to send are borrowed until the send returns. */
#pragma once

#include "common/base/limit.h"
#include "common/base/err.h"
#include "common/speculative/prefix.h"
#include "common/base/sampler.h"
#include <stdbool.h>
#include <stdint.h>

#define WIRE_MAGIC       "tandem"
#define WIRE_VERSION_MIN 2
/* Version 3 has features (MSG_FEATURES) and marks of accepted tokens; a peer of version 2 goes on without. */
#define WIRE_VERSION_MAX      5
#define WIRE_VERSION_FEATURES 3
/* MSG_PART, penalties by count and biases: a peer of version 2 is given no session that needs them */
#define WIRE_VERSION_PARTS  3
#define WIRE_VERSION_EXTRAS 3
/* The counts of drafting ahead in DONE: a peer of version 2 is not told them */
#define WIRE_VERSION_AHEAD 3
/* The hash of the model in WELCOME, and the numbers in DONE: a peer of version 3 is not told them */
#define WIRE_VERSION_HASH    4
#define WIRE_VERSION_NUMBERS 4
/* What a request says of partial KV: a peer of version 4 is not told it */
#define WIRE_VERSION_PARTIAL 5

/* Limits. Each is checked before memory is allocated. */
#define WIRE_FRAME_MAX (1u << 20) /* bytes of one frame */
/* Bytes of a frame that comes in at a listener: only OPEN is longer, and a listener never receives one */
#define WIRE_INBOUND_FRAME_MAX 22528
#define WIRE_GREETING_MAX      4096            /* of one that comes before HELLO; HELLO itself is shorter */
#define WIRE_DEPTH_MAX         8               /* nesting of arrays; maps and extensions do not occur */
#define WIRE_TOKENS_MAX        131072          /* tokens in one OPEN or PART */
#define WIRE_BURST_MAX         LIMIT(4096, 16) /* tokens in one TOKENS */
#define WIRE_NODES_MAX         1024            /* nodes in one NODES */
#define WIRE_STRING_MAX        512             /* bytes of a string */
#define WIRE_STOPS_MAX         32              /* stop tokens in OPEN */
#define WIRE_BUDGET_MAX        LIMIT(64, 12)   /* tree nodes in one verify */
/* Of partial KV: tokens that a block is a multiple of, and at most has; blocks of a kind, tokens of the
 * buffer and tokens between full passes at most */
#define WIRE_PARTIAL_UNIT        16
#define WIRE_PARTIAL_BLOCK_MAX   4096
#define WIRE_PARTIAL_BLOCKS_MAX  65536
#define WIRE_PARTIAL_BUFFER_MAX  1024
#define WIRE_PARTIAL_REFRESH_MAX 32
#define WIRE_POSITIONS_MAX       64                         /* entries of accepted_per_pos */
#define WIRE_CONTEXT_MAX         1048576                    /* largest length or position */
#define WIRE_LOGPROBS_MAX        (1 + SAMPLER_LOGPROBS_MAX) /* of one token */
#define WIRE_LOGPROBS_BURST      64                         /* tokens in one TOKENS that has them */
#define WIRE_GRAMMAR_MAX         65536                      /* bytes of a grammar */

/* Limits of features: what a draft head reads, rows of the target's states. */
#define WIRE_TAPS_MAX          8       /* states of one row */
#define WIRE_TAP_MAX           4096    /* largest number of a layer */
#define WIRE_HORIZON_MAX       4096    /* largest depth of a draft's tokens */
#define WIRE_FEATURE_WIDTH_MAX 65536   /* values of one row */
#define WIRE_FEATURE_ROWS_MAX  2048    /* rows of one FEATURES, and of the end of a prompt */
#define WIRE_FEATURES_MAX      262144  /* bytes of the rows of one FEATURES: one row of any width fits */
#define WIRE_FEATURES_CREDIT   4194304 /* bytes of rows that a target sends ahead of NODES.features */

typedef struct wire_id { /* incarnation or ticket */
  uint8_t bytes[16];
} wire_id;

bool wire_id_equal(wire_id a, wire_id b);
/* A ticket's first 4 bytes, big-endian, count the tickets of its session and epoch; the others are random. */
bool wire_ticket_older(const wire_id *a, const wire_id *b);

typedef struct wire_string {
  const char *data; /* UTF-8, not NUL-terminated */
  uint32_t size;
} wire_string;

wire_string wire_text(const char *s); /* of a NUL-terminated string; NULL gives the empty one */

#define WIRE_BRIEF_MAX 240

/* A peer's words as a line of the log may show them: cut to WIRE_BRIEF_MAX bytes, of printable ASCII. */
typedef struct wire_brief {
  char text[WIRE_BRIEF_MAX + 1];
} wire_brief;

wire_brief wire_brief_of(wire_string s);

#define WIRE_ADDRESS_MAX 46 /* bytes of an address as a number, with its NUL */

/* Where the transport saw a program; all zero: nothing is known. */
typedef struct wire_location {
  char address[WIRE_ADDRESS_MAX]; /* a number; "": not by TCP */
  bool away;                      /* on another host than ours */
} wire_location;

typedef enum { WIRE_ROLE_ORCHESTRATOR = 1, WIRE_ROLE_TARGET = 2, WIRE_ROLE_DRAFT = 3 } wire_role;

/* X(name, number) */
/* clang-format off */
#define MSG_LIST(X)                                                                                          \
  X(HELLO, 1)                                                                                                \
  X(WELCOME, 2)                                                                                              \
  X(ERROR, 3)                                                                                                \
  X(PING, 4)                                                                                                 \
  X(PONG, 5)                                                                                                 \
  X(BYE, 6)                                                                                                  \
  X(OPEN, 10)                                                                                                \
  X(OPENED, 11)                                                                                              \
  X(END, 12)                                                                                                 \
  X(ENDED, 13)                                                                                               \
  X(DESYNC, 14)                                                                                              \
  X(PART, 15)                                                                                                \
  X(TOKENS, 20)                                                                                              \
  X(ACK, 21)                                                                                                 \
  X(RESEND, 22)                                                                                              \
  X(DONE, 23)                                                                                                \
  X(ATTACH, 30)                                                                                              \
  X(ATTACHED, 31)                                                                                            \
  X(NODES, 32)                                                                                               \
  X(TREE_RESET, 33)                                                                                          \
  X(DETACH, 34)                                                                                              \
  X(FEATURES, 35)
/* clang-format on */
#define MSG_ENUM(name, number) MSG_##name = number,
typedef enum { MSG_LIST(MSG_ENUM) } msg_type;
#undef MSG_ENUM

/* HELLO, the first message of a connection from the side that connects; WELCOME is its answer. */
typedef struct msg_hello {
  uint32_t version_min, version_max; /* WELCOME: both are the version chosen */
  wire_role role;
  wire_id incarnation;                        /* random, new at every start of a program */
  hash16 model_fingerprint;                   /* a sample of the file; zero: this program loads no model */
  hash16 vocabulary_hash;                     /* zero: takes any vocabulary */
  int32_t vocabulary_size;                    /* 0: any */
  wire_string numerics_id;                    /* empty: computes no logits */
  wire_string endpoint;                       /* a target's address for drafts; else empty */
  wire_string method;                         /* a draft's method ("ngram", "replay", ...); else empty */
  int32_t session_max, context_max, node_max; /* limits of this program; 0: none of its own */
  hash16 host;                                /* common/base/host_id.h; zero: not told */
  wire_string device;                         /* what it computes on ("cpu", ...); empty: on none */
  hash16 model_hash;  /* of the whole file (model_file_read_hash), in a WELCOME of WIRE_VERSION_HASH alone;
                         zero: not told */
  wire_location seen; /* no field of the frame: where the transport saw it come from, */
  unsigned roles;     /* nor is this: the roles that its key may have, keys.h; 0: no key is asked for here */
} msg_hello;

typedef struct msg_error {
  int32_t code;     /* ERR_ of common/base/err.h */
  wire_string text; /* one sentence with the remedy */
} msg_error;

typedef struct msg_ping { /* PONG returns the same two and the answerer's load */
  uint64_t sequence, time_us;
  int32_t load; /* open sessions; 0 in PING */
} msg_ping;

/* Whether a session's next tokens are guessed over partial KV (target_worker/partial_kv.h) */
typedef enum {
  WIRE_PARTIAL_OWN, /* as the target was started; the numbers below are 0 */
  WIRE_PARTIAL_OFF, /* never; so are they */
  WIRE_PARTIAL_EXACT,
  WIRE_PARTIAL_LOSSY /* what is guessed is accepted: the answer is not the model's own */
} wire_partial;

typedef struct msg_partial {
  wire_partial mode;
  int32_t block;                   /* tokens of a block: a multiple of 16 */
  int32_t sink, retrieval, window; /* blocks */
  int32_t buffer;                  /* tokens for which there is room on top of these: more than refresh */
  int32_t threshold;               /* committed tokens from which on it is done */
  int32_t refresh;                 /* most tokens that are guessed between passes over the whole cache */
} msg_partial;

typedef struct msg_options { /* what a request asks for; the draft gets all of it too */
  float temperature, top_p, min_p, repeat_penalty;
  int32_t top_k;
  uint64_t seed;
  uint32_t choice;
  int32_t max_tokens;   /* of output, >= 1 */
  int32_t context;      /* the sequence never grows beyond it */
  const int32_t *stops; /* end-of-sequence and stop tokens */
  int32_t stop_count;
  int32_t budget;    /* most tree nodes in one verify; 0: no speculation */
  bool lockstep;     /* --pace lockstep */
  int32_t selfcheck; /* every so many rounds; 0: off */
  bool single;       /* a forward gives one token, whatever it has verified */
  float presence_penalty, frequency_penalty;
  int32_t bias_count; /* at most SAMPLER_BIAS_MAX */
  /* Log-probabilities that TOKENS shall bring with each token, [0, WIRE_LOGPROBS_MAX]: its own, and those of
   * one token less, the likeliest. 0: none. */
  int32_t logprobs;
  uint32_t grammar_size;
  msg_partial partial;
  const char *grammar; /* [grammar_size] of text, which the output follows (common/grammar); size 0: none */
  const int32_t *bias_tokens;
  const float *bias_values;
} msg_options;

typedef struct msg_bias { /* room for the bias of options */
  int32_t tokens[SAMPLER_BIAS_MAX];
  float values[SAMPLER_BIAS_MAX];
} msg_bias;

/* Opens, resumes, rolls back or repairs a session: afterwards the worker holds C = its own first base_length
 * tokens (whose hash must be base_hash), then `tokens`. */
typedef struct msg_open {
  wire_id ticket;
  uint64_t hash_seed;
  int32_t base_length;
  hash16 base_hash;
  const int32_t *tokens;
  int32_t token_count;
  hash16 hash;           /* of the whole prefix that results */
  int32_t prompt_length; /* output begins here */
  msg_options options;
  bool draft_expected;         /* to a target: a draft has been asked to attach */
  wire_string target_endpoint; /* to a draft */
  wire_id target_incarnation;  /* to a draft */
  /* To a target of version 3: its TOKENS shall say which tokens are accepted ones, and what a plain step
   * takes */
  bool accepted_wanted;
  int32_t total; /* PART: length of the prefix that OPEN will make; OPEN: 0 */
} msg_open;

/* The length of the prefix that this OPEN makes, or the OPEN after this PART. */
static inline int32_t msg_open_length(const msg_open *o) {
  return o->total ? o->total : o->base_length + o->token_count;
}

typedef enum { WIRE_BF16 = 1, WIRE_F32 = 2 } wire_type; /* of the values of features; little-endian */

static inline uint32_t wire_type_size(wire_type t) { /* bytes of a value */
  return t == WIRE_BF16 ? 2 : 4;
}

/* The features that a draft asks for. Tap i is the state that enters layer i, counted from 0; i = the number
 * of layers is the last state before the final norm. A row is the states of one position in the order of the
 * taps, one behind the other, or what the head's first linear (fc) makes of them. */
typedef struct msg_feature_request {
  const int32_t *taps;
  int32_t tap_count; /* 0: the draft asks for none, and the field is left out */
  wire_type type;
  hash16 fc;       /* of the weights of fc, which the target may apply where it has them; zero: raw states */
  int32_t from;    /* first position wanted */
  int32_t horizon; /* how many tokens ahead this draft was trained to guess; 0: it does not say */
} msg_feature_request;

/* The features that the target grants. */
typedef struct msg_feature_grant {
  int32_t width; /* values of a row; 0: it grants none, and the field is left out */
  wire_type type;
  bool fused;   /* fc is applied */
  int32_t from; /* nothing before this position will come */
} msg_feature_grant;

/* OPENED, ACK, DESYNC, ATTACH, ATTACHED, DETACH: what the sender holds of the session */
typedef struct msg_state {
  int32_t length;
  hash16 hash;
  wire_id ticket;              /* ATTACH */
  uint32_t generation;         /* ATTACH: the draft's; ATTACHED: the one to use from now on */
  wire_string reason;          /* DESYNC, DETACH */
  msg_feature_request request; /* ATTACH */
  msg_feature_grant grant;     /* ATTACHED */
} msg_state;

typedef struct msg_tokens {
  int32_t base_length;
  const int32_t *tokens;
  int32_t token_count;
  hash16 hash; /* after them */
  /* One bit a token, the least significant bit of each byte first: 1 for an accepted token, 0 for one that
   * the target alone has chosen. Size 0: nobody has asked. */
  const uint8_t *accepted;
  uint32_t accepted_size;
  /* [logprob_count] = [token_count][options.logprobs] of each token: itself, then the likeliest, the best
   * first. -1: none; its log-probability is 0. Count 0: nobody has asked. */
  const int32_t *logprob_tokens;
  const float *logprobs;
  int32_t logprob_count;
  /* To an orchestrator that wants accepted marks: what a plain step takes, in microseconds, as measured. 0:
   * not known, or nobody has asked. */
  uint32_t plain_us;
} msg_tokens;

#define MSG_ACCEPTED_SIZE(tokens) (((tokens) + 7) / 8)

/* Is token i of the message an accepted one? False where the message does not say. */
bool msg_token_accepted(const msg_tokens *t, int32_t i);
/* Packs flags[count] (1 or 0) into bits[MSG_ACCEPTED_SIZE(count)]. */
void msg_pack_accepted(const uint8_t *flags, int32_t count, uint8_t *bits);

typedef struct msg_resend {
  int32_t from;
} msg_resend;

typedef struct msg_nodes {
  uint32_t generation;
  int32_t base_length;
  hash16 base_hash;
  uint64_t first_id;
  const uint64_t *parents; /* [count] */
  const int32_t *tokens;   /* [count] */
  const float *scores;     /* [count] */
  int32_t count;
  bool done; /* for this base the draft has nothing more to add until it gets TOKENS */
  /* The features of all positions below this one have come, or are not waited for any more: gives credit. 0:
   * none were granted, and the field is left out. */
  int32_t features;
} msg_nodes;

/* The features of positions [base, base + count) of C. What lies before `base` and has not come is lost. */
typedef struct msg_features {
  int32_t base, count; /* count 0: says only that features before base are lost */
  int32_t width;
  wire_type type;
  const uint8_t *rows; /* [count][width] values of `type` */
  uint32_t size;       /* bytes of rows */
} msg_features;

typedef struct msg_reset {
  uint32_t generation; /* the generation that the draft must start */
} msg_reset;

typedef enum {
  WIRE_FINISH_STOP = 1,
  WIRE_FINISH_LENGTH = 2,
  WIRE_FINISH_CANCELLED = 3,
  WIRE_FINISH_ERROR = 4
} wire_finish;

/* Of one session since its first OPEN at this worker; times are sums in microseconds */
typedef struct msg_stats {
  uint64_t forwards; /* decode and verify forwards, prefill not counted: tokens = forwards + accepted */
  uint64_t rounds;   /* forwards that carried tree nodes */
  uint64_t rows;     /* tree nodes verified (= draft tokens) */
  uint64_t accepted; /* of them */
  uint64_t rewound;  /* rows - accepted */
  uint64_t prefill_us, queue_us, forward_us, accept_us, commit_us, wait_us;
  uint64_t plain_steps;             /* forwards without nodes */
  uint64_t resets, dropped;         /* TREE_RESETs sent; stale frames dropped */
  const uint64_t *accepted_per_pos; /* [position_count]: verifies whose i-th node of the chain was accepted */
  int32_t position_count;
  /* Drafting ahead; to an orchestrator of WIRE_VERSION_AHEAD. Without verdicts all are 0. */
  uint64_t verdicts;   /* forwards with nodes, or while a draft was attached */
  uint64_t ahead_hits; /* of them: nodes that had come already survived it, so the next verify has a tree */
  uint64_t survivors;  /* nodes that survived verdicts, of all together */
} msg_stats;

/* Why speculation was off at the end, where a program has to know: numbers are only ever added, and one that
 * is not known is as good as WIRE_OFF_OTHER. */
typedef enum {
  WIRE_OFF_OTHER = 0,
  WIRE_OFF_UNATTACHED = 1, /* a draft was expected and has never attached: who assigned it knows more */
  WIRE_OFF_UNPAID = 2      /* it was tried, and did not pay for itself */
} wire_off;

typedef struct msg_done {
  int32_t length; /* of C at the end */
  hash16 hash;
  wire_finish finish;
  int32_t code; /* ERR_ when finish is error */
  /* The sentence for code. Before WIRE_VERSION_NUMBERS it told the speed of plain steps where there was no
   * error. */
  wire_string text;
  wire_string off_reason; /* why speculation was off at the end; empty: it was on */
  msg_stats stats;
  uint32_t off;      /* wire_off; to an orchestrator of WIRE_VERSION_NUMBERS, like the next */
  uint32_t plain_us; /* what a plain step of this session took; 0: not known, or nothing to compare with */
} msg_done;

typedef struct msg {
  msg_type type;
  wire_id to; /* incarnation this frame is meant for; zero only in HELLO, and in an ERROR to one unknown */
  uint64_t session; /* 0: not about a session */
  uint32_t epoch;
  union {
    msg_hello hello;       /* HELLO, WELCOME */
    msg_error error;       /* ERROR */
    msg_ping ping;         /* PING, PONG */
    msg_open open;         /* OPEN, PART */
    msg_state state;       /* OPENED, ACK, DESYNC, ATTACH, ATTACHED, DETACH */
    msg_tokens tokens;     /* TOKENS */
    msg_resend resend;     /* RESEND */
    msg_nodes nodes;       /* NODES */
    msg_reset reset;       /* TREE_RESET */
    msg_done done;         /* DONE */
    msg_features features; /* FEATURES */
    bool existed;          /* ENDED */
  } u;                     /* END, BYE: nothing */
} msg;

const char *msg_name(msg_type type); /* "HELLO", ...; "?" */

/* Do two names of devices of one host stand for the same device? All of the processors' names do ("cpu",
 * "cpu:avx2"). An empty name is none. */
bool msg_same_device(wire_string a, wire_string b);

/* What the name of a device ends in if its program has enough of the device to itself (--beside). */
#define MSG_BESIDE " beside"

/* Do these two programs compute on the same device of the same host, so that one is slower while the other
 * computes? False if one of them does not compute, does not tell its host, or computes beside others. Two
 * that were pinned to different processors (--pin) of a host count as colocated all the same: HELLO does not
 * name processors. */
bool msg_colocated(const msg_hello *a, const msg_hello *b);
/* Do they compute on the processors of the same host, one of them beside the other? */
bool msg_beside(const msg_hello *a, const msg_hello *b);

/* The part of a request's options that says how tokens are chosen. */
sampler_options msg_sampling(const msg_options *o);
/* Do these options need a worker of WIRE_VERSION_EXTRAS? */
bool msg_options_extras(const msg_options *o);
/* Copies options with their stops and their bias, as many as there is room for; a grammar stays where it is.
 */
void msg_options_copy(msg_options *to, const msg_options *from, int32_t stops[WIRE_STOPS_MAX],
                      msg_bias *bias);
/* Copies the bias of `from` and lets *to have it. */
void msg_bias_copy(msg_options *to, const msg_options *from, msg_bias *bias);

/* Checks every option by itself, so that the orchestrator and the workers refuse the same requests with the
 * same words. ERR_ARG or ERR_LIMIT and a sentence that names the option and its range. A context of 0 is
 * allowed and stands for the target's own. What depends on the prompt, the model or the worker's memory is
 * checked by those who know them. */
int msg_options_check(const msg_options *o, err *e);
/* The same of partial KV alone: what a block is, and what fits into what. */
int msg_partial_check(const msg_partial *p, err *e);

/* Says why an OPEN does not fit `held`, which is what the worker holds of the session (NULL: nothing): either
 * its base is not held, or its tokens do not give its hash. Returns NULL if it fits. Changes nothing. */
const char *msg_open_misfit(const msg_open *o, const prefix *held);
