/* chat_header.h - the tokens that a chat template writes between the end of one turn and the text of the
 * next. They are the same around every turn, and say nothing about the text. The template is not known to a
 * draft, but the tokens that end a turn are, and the header stands between the last of them and the reply. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The length of the header that the prompt of tokens[length] ends with; 0: it ends with none, or is not all
 * here. */
int32_t chat_header_length(const int32_t *tokens, int32_t length, int32_t prompt_length, const int32_t *stops,
                           int32_t stop_count);
bool chat_header_is_stop(const int32_t *stops, int32_t stop_count, int32_t token);
