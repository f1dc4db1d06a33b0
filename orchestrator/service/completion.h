/* completion.h - the output of one request: a stream of text, an end, and figures.
 *
 * The owner calls completion_update when the service has news; new text and the end go to the sink. */
#pragma once

#include "common/text/detokenizer.h"
#include "orchestrator/service/completion_trace.h"
#include "orchestrator/service/prompt.h"
#include "orchestrator/service/service.h"

typedef struct completion completion;

/* Where the stream goes. Either may be NULL. */
typedef struct completion_sink {
  /* More text, in whole UTF-8 characters; the ledger already has its tokens. `accepted`: it came with
   * accepted tokens (false unless accepted_wanted). */
  void (*on_text)(void *context, const char *text, size_t size, bool accepted);
  /* The end, once, with all figures. The completion must not be freed in it. */
  void (*on_end)(void *context, const completion *c);
  void *context;
} completion_sink;

struct completion {
  const text_model *model;
  completion_sink sink;
  const ledger_session
      *resume;              /* borrowed: the session that this completion continues; NULL: it is a new one */
  bool show_whole;          /* of a continued session: also give the text that was there already */
  bool accepted_wanted;     /* the sink wants to know which text came with accepted tokens */
  detokenizer *detokenizer; /* NULL: the model has no vocabulary, and the answer no text */
  uint64_t session;         /* 0: not begun, or over */
  uint64_t id;              /* the session, also when it is over; 0: there was none */
  tokenizer_ids prompt;

  char *text; /* [text_size], UTF-8; text beyond `shown` has tokens that are not in the ledger yet */
  size_t text_size, text_capacity, shown;
  int32_t fed;   /* output tokens that the detokenizer has seen */
  int32_t given; /* of them, those whose text the sink has had */
  /* Since it began, with accepted_wanted: tokens that came, and accepted ones among them. Each of the other
   * tokens is the last one of a step. */
  int32_t fresh, fresh_accepted;
  size_t *text_after; /* [fed]: size of the text after each of them */
  size_t text_after_capacity;
  /* [logprob_count][logprobs_each] of the output tokens, as in sessions_view; each 0: none are wanted */
  ranking_token *logprobs;
  int32_t logprobs_each, logprob_count, logprob_capacity;
  /* How many of these tokens stay when a stop string cuts the rest; -1: no stop string was found. */
  int32_t kept;

  /* [count], once it has ended: the output tokens, with the end token and without what was cut */
  int32_t *tokens;
  int32_t count;
  int32_t first_count; /* tokens that arrived together first */
  uint64_t came_us;    /* the request, where it waited for its beginning; 0: it did not */
  uint64_t start_us, first_token_us, first_shown_us, end_us;

  wire_finish finish; /* 0 until the answer has ended; the figures may come later */
  bool end_given;     /* on_end was called */
  err trouble;        /* when finish is error */
  uint64_t seed, hash_seed;
  uint32_t epoch;
  int32_t max_tokens, context; /* limits: output tokens; prompt and output together */
  bool draft_wanted;
  char draft_method[WIRE_STRING_MAX + 1], numerics_id[WIRE_STRING_MAX + 1], off_reason[WIRE_STRING_MAX + 1];
  bool unpaid;       /* off_reason is that the draft did not pay for itself */
  uint32_t plain_us; /* what a plain step of the target takes; 0: not known (yet) */
  bool numerics_changed;
  msg_stats stats;
  int32_t uncounted; /* output tokens that stats do not cover */
  uint64_t accepted_per_pos[WIRE_POSITIONS_MAX];
  completion_trace trace;
};

/* The sink is copied; NULL: nobody listens. */
void completion_init(completion *c, const text_model *m, const completion_sink *sink);
void completion_fini(completion *c);

/* Finds the prompt's ids, of the request or of the session that goes on, and checks everything that can be
 * checked without a target. The errors of request_check, prompt_encode and prompt_check. */
int completion_prepare(completion *c, const request *r, err *e);
/* Opens a session for the request, after completion_prepare if that has not been called. The completion must
 * not move until it is over; the request may go. */
int completion_begin(completion *c, service *s, const request *r, err *e);

/* Takes what the session has new, and gives it to the sink. */
void completion_update(completion *c, service *s);
/* Ends it early; the text that came stays. The end comes by completion_update, or at once where it has not
 * begun. */
void completion_cancel(completion *c, service *s);
/* Ends it now with an error that lies outside the session. */
void completion_fail(completion *c, service *s, const err *why);
/* It has ended, and all figures are there. */
bool completion_is_over(const completion *c);
/* Does what was shown, here or before it was resumed, end within a line? A stop string may have cut it since.
 */
bool completion_line_is_open(const completion *c);

/* Fills *out with the session of a completion that was cut by a length limit or cancelled, as the ledger
 * would give it, for up to `more` further tokens. Release *out with ledger_session_fini. ERR_ARG: it was not
 * cut; ERR_LIMIT: the context is full; ERR_NOMEM. */
int completion_to_resume(const completion *c, const request *r, int32_t more, ledger_session *out, err *e);

/* Tokens a second. 0: fewer than COMPLETION_TIMED_TOKENS, or within less than COMPLETION_TIMED_US, say
 * nothing of a speed: tokens arrive in bursts, and a clock's first milliseconds are the program's own. */
#define COMPLETION_TIMED_TOKENS 32
#define COMPLETION_TIMED_US     20000
double completion_speed(int64_t tokens, uint64_t us);
int32_t completion_fresh_tokens(const completion *c);     /* of [count], those that no earlier run gave */
int32_t completion_timed_tokens(const completion *c);     /* those after the first ones */
uint64_t completion_timed_us(const completion *c);        /* and how long they took */
double completion_tokens_per_second(const completion *c); /* of these; 0: too few to say */
double completion_first_ms(const completion *c); /* from the request until the first tokens could be shown */
/* How many tokens the figures cover. They lack those of a target that died before it reported. */
int32_t completion_counted(const completion *c);
double completion_mean_accepted(const completion *c); /* draft tokens in a verify step */
/* While it runs: tokens a second so far, after the first ones; 0: too few to say. */
double completion_speed_now(const completion *c, uint64_t now_us);
/* With accepted_wanted: tokens for each step of the target, from 1; 0: none yet. */
double completion_acceptance_length(const completion *c);
/* What the target has measured of its plain steps, in tokens a second; 0: nothing (yet). Without
 * accepted_wanted only the end tells. */
double completion_plain_speed(const completion *c);
/* How many times as fast as plain decoding, both in tokens a second: the time that plain steps would take for
 * the tokens after the first ones, over the time that these took. 0: one of the two is not known. */
double completion_gain(double speed, double plain);
/* Why speculation was off at the end; NULL: it was on, or not asked for. */
const char *completion_off_reason(const completion *c);
/* That of the draft which was chosen; "partial-kv": there was none, and the target guessed by itself; "none".
 */
const char *completion_draft_method(const completion *c);
/* May tokens have been accepted that are not the target's own? */
bool completion_is_lossy(const completion *c);

/* Of the same request answered twice: where the tokens differ first (-1: nowhere), and how many times as fast
 * the second was (0: too few tokens to say, or the draft had no guess). */
int32_t completion_first_difference(const completion *plain, const completion *drafted);
double completion_speedup(const completion *plain, const completion *drafted);
