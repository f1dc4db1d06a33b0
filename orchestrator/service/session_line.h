/* session_line.h - a whole session as one line of JSON, which `tandem session export' writes and `tandem
 * session import' reads. Each line stands for itself: it says what it is and of which version, and has a
 * checksum, so that lines may be picked out, put together and sent one by one.
 *
 * The object is that of `tandem session show --json' (whose keys of a request `tandem batch' takes), and
 *   "format"      "tandem session"
 *   "version"     1
 *   "epoch"       the highest that may have been sent
 *   "hash_seed"   16 hex digits
 *   "checksum"    32 hex digits: XXH3_128 of the object without this key, as compact JSON with sorted keys */
#pragma once

#include "orchestrator/ledger/ledger_query.h"
#include <jansson.h>

#define SESSION_LINE_FORMAT    "tandem session"
#define SESSION_LINE_VERSION   1
#define SESSION_LINE_BY_HAND   "ended"    /* state of a session that a person has ended */
#define SESSION_LINE_MAX       (64 << 20) /* bytes */
#define SESSION_LINE_TEXT_MAX  65536      /* bytes of its "request" and of its "stats" */
#define SESSION_LINE_EPOCH_MAX INT32_MAX  /* leaves room for all that follow */
#define SESSION_LINE_DIGITS    16         /* of a number that is no integer */

/* The text of a line, without its end, from the object of a session; free() it. NULL: out of memory. */
char *session_line_write(json_t *object, const ledger_session *s);
/* ledger_session_fini(out) follows, in any case. ERR_FORMAT: it is no such line, or a damaged one;
 * ERR_VERSION: it is of a newer tandem; ERR_LIMIT; ERR_NOMEM. */
int session_line_read(const char *text, size_t size, ledger_session *out, err *e);
