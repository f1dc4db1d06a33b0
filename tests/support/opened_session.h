/* opened_session.h - sessions for tests of single files, made as an OPEN makes them. */
#pragma once

#include "target_worker/session_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* C and the options become those of an OPEN with these tokens after the first `base` of C. */
void session_adopt(session *s, int32_t base, const int32_t *tokens, int32_t count, int32_t prompt_length,
                   msg_options options);

/* A session of the store whose prompt is these tokens and has no rows in the cache yet. */
session *session_opened(session_store *store, uint64_t id, uint64_t now, const int32_t *tokens, int32_t count,
                        msg_options options);

/* Every row but the root's is in the cache. */
void session_prefilled(session *s);
