/* json_schema.h - a JSON schema as a grammar (common/grammar) of the JSON texts that it allows.
 *
 * Supported: true and {}; type (one, or a list), properties with required and additionalProperties; items,
 * prefixItems, minItems and maxItems; enum, const, anyOf, oneOf (which may be several at once, as anyOf),
 * allOf of one; minLength and maxLength; $ref to # and to what "$defs" and "definitions" have. Properties
 * come in the schema's order, others after them. What only tells (title, description, default, examples,
 * format, ...) is ignored; any other keyword is refused by its name, as it would be left unheeded. */
#pragma once

#include "common/base/err.h"
#include <jansson.h>

/* *out is the grammar's text; free() it. ERR_ARG: what is wrong, and where; ERR_UNSUPPORTED; ERR_LIMIT;
 * ERR_NOMEM. */
int json_schema_grammar(const json_t *schema, char **out, err *e);
