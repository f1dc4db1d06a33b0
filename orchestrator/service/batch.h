/* batch.h - request lines, of `batch` and `serve-workers`: what each asks for. */
#pragma once

#include "orchestrator/cli/flags.h"
#include "orchestrator/service/text_model.h"
#include <jansson.h>

#define BATCH_FILE_MAX     (1u << 30) /* bytes of IN */
#define BATCH_LINE_MAX     (32u << 20)
#define BATCH_MESSAGES_MAX 1024 /* of one conversation */

/* The prompt of one line; what the line says of its own options replaces those of *f. *object gets the line
 * (to json_decref after *f: its stop strings are the line's), also on failure where it is JSON; else NULL.
 * ERR_FORMAT (no JSON object, not UTF-8), ERR_ARG (a key missing, unknown, of another kind, or one too many),
 * ERR_LIMIT. */
int batch_read_line(const char *line, size_t size, const text_model *m, flags *f, json_t **object,
                    tokenizer_ids *out, err *e);
json_t *batch_id(const json_t *object); /* its "id", borrowed; NULL: none that will do */
bool batch_is_blank(const char *line, size_t size);
