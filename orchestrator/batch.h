/* batch.h - the lines of a batch: what each asks for, as prompt ids. */
#pragma once

#include "orchestrator/flags.h"
#include "orchestrator/text_model.h"
#include <jansson.h>

#define BATCH_FILE_MAX     (1u << 30) /* bytes of IN */
#define BATCH_LINE_MAX     (32u << 20)
#define BATCH_MESSAGES_MAX 1024 /* of one conversation */

/* The prompt of one line. *id gets its "id" (to json_decref), also on failure when it could be read; else
 * NULL. ERR_FORMAT (no JSON object, not UTF-8), ERR_ARG (a key missing, of another kind, or one too many),
 * ERR_LIMIT. */
int batch_read_line(const char *line, size_t size, const text_model *m, const flags *f, json_t **id,
                    tokenizer_ids *out, err *e);
