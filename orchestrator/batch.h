/* batch.h - request lines, of `batch` and `serve-workers`: what each asks for. */
#pragma once

#include "orchestrator/flags.h"
#include "orchestrator/text_model.h"
#include <jansson.h>

#define BATCH_FILE_MAX     (1u << 30) /* bytes of IN */
#define BATCH_LINE_MAX     (32u << 20)
#define BATCH_MESSAGES_MAX 1024 /* of one conversation */

/* The prompt of one line; what the line says of its own switches replaces those of *f. *id gets its "id" (to
 * json_decref), also on failure when it could be read; else NULL. ERR_FORMAT (no JSON object, not UTF-8), ERR_ARG (a
 * key missing, unknown, of another kind, or one too many), ERR_LIMIT. */
int batch_read_line(const char *line, size_t size, const text_model *m, flags *f, json_t **id,
                    tokenizer_ids *out, err *e);
bool batch_is_blank(const char *line, size_t size);
