/* request.h - what a client asks for: a prompt, and how it is to be answered. The command line, a line of
 * JSON and an HTTP body all fill this one struct, and nothing behind it knows which of them did. */
#pragma once

#include "common/base/sampler.h"
#include "common/text/chat_template.h"
#include "common/text/detokenizer.h"
#include "wire/message.h"
#include <jansson.h>

#define REQUEST_MAX_TOKENS_DEFAULT 256
#define REQUEST_BUDGET_DEFAULT     15
#define REQUEST_TITLE_MAX          160 /* bytes */

typedef enum { REQUEST_NO_PROMPT, REQUEST_TEXT, REQUEST_IDS, REQUEST_MESSAGES } request_prompt_kind;

/* It owns everything that it points to, and request_fini frees that. */
typedef struct request {
  request_prompt_kind prompt_kind; /* which of these three is given */
  char *text;                      /* [text_size], then a NUL */
  size_t text_size;
  tokenizer_ids ids;
  chat_message *messages; /* [message_count] */
  int32_t message_count, message_capacity;

  char *system;    /* the system message; NULL: the chat template's own default */
  bool raw;        /* no chat template: the text itself is continued */
  bool no_special; /* special tokens written in a raw text are plain text */

  sampler_options sampling;
  bool seed_given; /* the client gave the seed; otherwise one was drawn */
  msg_bias bias;   /* [bias_count] added to the logits of these tokens, each of which is there once */
  int32_t bias_count;
  char *grammar;    /* what the answer follows (common/grammar); NULL: anything */
  int32_t logprobs; /* as in msg_options */
  int32_t max_tokens;
  int32_t context; /* tokens of prompt and answer together, at most */
  char *stops[DETOKENIZER_STOP_MAX];
  int32_t stop_count;
  bool single_token; /* one token a forward: drafts are verified, none is accepted */

  bool speculate;    /* a draft is wanted, if there is one */
  int32_t budget;    /* most draft tokens in one verify step; 0: no draft */
  bool lockstep;     /* wait for every draft, for tests */
  int32_t selfcheck; /* decode every so many rounds again plainly and compare; 0: never */

  bool partial_kv;     /* targets may guess over partial KV; */
  bool lossy;          /* and what they guess is accepted, unless the request says that it is not; */
  msg_partial partial; /* where the request says nothing of it, its mode is OWN, and the numbers are the
                          command line's */

  char *title; /* what the ledger calls it; NULL: nothing */
} request;

/* The defaults, without a prompt and with seed 0. */
void request_init(request *r);
void request_fini(request *r);
/* *to need not be initialised. ERR_NOMEM: *to is as after request_init. */
int request_copy(request *to, const request *from, err *e);

/* Each copies what it is given and replaces what was there. ERR_NOMEM. */
int request_set_text(request *r, const char *text, size_t size, err *e);
int request_set_ids(request *r, const int32_t *ids, size_t count, err *e);
int request_set_system(request *r, const char *text, err *e);
/* Cut to a few words on one line. */
int request_set_title(request *r, const char *text, size_t size, err *e);

/* ERR_FORMAT, ERR_LIMIT: it is no grammar. NULL: none any more. */
int request_set_grammar(request *r, const char *text, err *e);

/* The grammar of a JSON schema: json_schema.h. */
int request_set_schema(request *r, const json_t *schema, err *e);
/* The same from its text. ERR_FORMAT: it is no JSON. */
int request_set_schema_text(request *r, const char *text, err *e);

/* Adds a message of a conversation. ERR_NOMEM. */
int request_add_message(request *r, const char *role, const char *content, size_t size, err *e);
/* Adds a stop string: the output ends before it. `name` is what the client calls this option in errors.
 * ERR_ARG: the string is empty, too long, not UTF-8 or one too many; ERR_NOMEM. */
int request_add_stop(request *r, const char *name, const char *text, size_t size, err *e);
void request_clear_stops(request *r);

/* Adds `value` to the logits of a token, instead of what was there for it. ERR_ARG: there are too many. */
int request_add_bias(request *r, int32_t token, float value, err *e);

bool request_wants_draft(const request *r);
/* Neither a draft nor partial KV. */
void request_speculate_not(request *r);

/* The options that the target gets; the caller adds the model's stop tokens. */
msg_options request_options(const request *r);
/* Checks a request, wherever it comes from: the kind of its prompt must fit its template, and its options
 * must pass msg_options_check, as at the target. ERR_ARG or ERR_LIMIT names the option and its range. */
int request_check(const request *r, err *e);
