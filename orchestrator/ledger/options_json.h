/* options_json.h - a request's options as the JSON text that the ledger keeps. Every float is read back with
 * the same bits. */
#pragma once

#include "common/base/err.h"
#include "wire/message.h"
#include <jansson.h>

json_t *options_json_object(const msg_options *o); /* NULL: out of memory */
char *options_json_text(const msg_options *o);     /* free() it; NULL: out of memory */
/* out->stops points to stops[WIRE_STOPS_MAX], out->bias_tokens and bias_values into *bias, out->grammar to
 * *grammar, which the caller frees; NULL: there is none. ERR_FORMAT: the text is not one that the two
 * functions above make; ERR_NOMEM. */
int options_json_read(const char *text, msg_options *out, int32_t stops[WIRE_STOPS_MAX], msg_bias *bias,
                      char **grammar, err *e);

/* Reads a logit bias, an object as OpenAI's API has it: {"TOKEN": VALUE}. `name` is what the client calls it
 * in errors. ERR_ARG: it is none, or has more than SAMPLER_BIAS_MAX tokens. */
int options_json_bias(const json_t *object, const char *name, msg_bias *out, int32_t *count, err *e);
