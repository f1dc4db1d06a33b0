/* err.h - the world's errors: a code and a sentence that says what to do.
 *
 * A function that can fail returns ERR_OK (0) or a negative ERR_ code. One that takes an `err *` also fills
 * it on failure; NULL is allowed everywhere. Bugs are asserted, never returned. */
#pragma once

/* X(name, wire and log name): numbers are part of the wire protocol (wire/PROTOCOL.md), append only. */
#define ERR_LIST(X)                                                                                          \
  X(NOMEM, -1, "out_of_memory")                                                                              \
  X(IO, -2, "io")                                                                                            \
  X(FORMAT, -3, "bad_format") /* a file or text that is not what it claims to be */                          \
  X(LIMIT, -4, "limit")       /* a named limit would be passed */                                            \
  X(ARG, -5, "bad_argument")  /* a flag, option or request field */                                          \
  X(FULL, -6, "full")         /* no slot, block or node left; try later */                                   \
  X(STATE, -7, "bad_state")   /* not possible now, e.g. commit without stage */                              \
  X(TIMEOUT, -8, "timeout")                                                                                  \
  X(UNSUPPORTED, -9, "unsupported") /* well formed, but not built here */                                    \
  X(PROTOCOL, -10, "protocol")      /* a frame that breaks a rule of PROTOCOL.md */                          \
  X(VERSION, -11, "version")        /* no common protocol version */                                         \
  X(MISMATCH, -12, "mismatch")      /* model, vocabulary or numerics differ */                               \
  X(DESYNC, -13, "desync")          /* (epoch, length, hash) other than expected */                          \
  X(GONE, -14, "gone")              /* no such session, or a peer that left */                               \
  X(STALE, -15, "stale")            /* an epoch, generation or incarnation that has passed */                \
  X(TICKET, -16, "bad_ticket")      /* an attach that does not know the session's ticket */                  \
  X(CANCELLED, -17, "cancelled")                                                                             \
  X(DRAINING, -18, "draining")  /* the worker takes no new sessions */                                       \
  X(INTERNAL, -19, "internal")  /* the engine failed; the session goes plain or ends */                      \
  X(DEVICE, -20, "device_lost") /* with all in its memory: the worker can compute nothing more */            \
  X(DENIED, -21, "denied")      /* the peer's key may not do this */

#define ERR_ENUM(name, number, text) ERR_##name = number,
enum { ERR_OK = 0, ERR_LIST(ERR_ENUM) };
#undef ERR_ENUM

#define ERR_TEXT_MAX 400

typedef struct err {
  int code;                /* ERR_OK until set */
  char text[ERR_TEXT_MAX]; /* one sentence, no newline; names the file, flag or field and the remedy */
} err;

/* Sets code and text and returns code, so that `return err_set(e, ERR_IO, "...")` reads well. */
int err_set(err *e, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* "ok", "out_of_memory", ...; "unknown" for a number that is none. */
const char *err_name(int code);
