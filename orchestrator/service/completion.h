/* completion.h - one request on its way: from prompt ids to text that may be shown, and its figures. */
#pragma once

#include "common/text/detokenizer.h"
#include "orchestrator/service/service.h"

typedef struct completion {
  const text_model *model;
  const ledger_session *resume; /* borrowed: the answer goes on from there; NULL: a new one */
  const char *title;    /* borrowed, for the ledger: what it is about; NULL: nothing. Cut to a few words */
  bool whole;           /* of one that is resumed: show what it had already, too */
  size_t seen;          /* or this much of its text has been shown */
  detokenizer *text_of; /* NULL: the model has no vocabulary, the answer no text */
  uint64_t session;     /* 0: not begun, or over */
  uint64_t id;          /* the session, also when it is over; 0: there was none */
  tokenizer_ids prompt;

  char *text; /* [size], UTF-8; what is past `shown` has no log entry yet */
  size_t size, capacity, shown;
  int32_t fed;  /* output tokens that the detokenizer has seen */
  size_t *ends; /* [fed]: size of the text after each of them */
  size_t ends_capacity;
  int32_t kept; /* of them, when a stop string cut the rest; -1: none was found */

  int32_t *tokens; /* [count] once it is over: the output, end token included, what was cut excluded */
  int32_t count, came_count;                    /* came_count: tokens that came first, together */
  uint64_t start_us, came_us, first_us, end_us; /* came: from the target; first: could be shown */

  wire_finish finish; /* 0 until it has ended */
  err trouble;        /* when finish is error */
  uint64_t seed, hash_seed;
  uint32_t epoch;
  int32_t max_tokens, context; /* what it could have at most: of its own, and with the prompt */
  bool draft_wanted;
  char draft_method[WIRE_STRING_MAX + 1], numerics_id[WIRE_STRING_MAX + 1], off_reason[WIRE_STRING_MAX + 1];
  char plain_speed[WIRE_STRING_MAX + 1]; /* what the target says of its plain steps; "": nothing */
  bool numerics_changed;
  msg_stats stats;
  int32_t uncounted; /* tokens that they do not cover */
  uint64_t accepted_per_pos[WIRE_POSITIONS_MAX];
} completion;

/* Zeroes it; the prompt's ids are for the caller to fill. */
void completion_init(completion *a, const text_model *m);
void completion_fini(completion *a);

/* Opens a session for the prompt, or goes on with `resume`. The answer must not move until it is over. */
int completion_begin(completion *a, service *p, const flags *f, int32_t context, err *e);

/* An answer that is over, and was cut: as the ledger would give it to one that goes on with it, by up to
 * `more` tokens. *out is ledger_session_fini's. ERR_ARG: it was not cut; ERR_LIMIT: the context is full;
 * ERR_NOMEM. */
int completion_to_resume(const completion *a, const flags *f, int32_t more, ledger_session *out, err *e);

/* Looks at the session. The answer has ended when a->finish is set; it is over, with all figures, when
 * a->session is 0 as well. New text that may be shown now, UTF-8, goes to *text and *size (0: none), valid
 * until the next call. */
void completion_look(completion *a, service *p, const char **text, size_t *size);

/* Over by an error that is not the session's own. */
void completion_fail(completion *a, service *p, const err *why);

double
completion_tokens_per_second(const completion *a); /* from the first tokens to the end; 0: too few to say */
double completion_first_ms(const completion *a);   /* from the request to the first tokens */
int32_t completion_counted(
    const completion *a); /* tokens that the figures cover: a target that died has not told its own */
double completion_mean_accepted(const completion *a); /* draft tokens a round */
/* Why speculation was off at the end; NULL: it was on, or not asked for. */
const char *completion_off_reason(const completion *a);
