#include "common/speculative/chat_header.h"

#define HEADER_MAX 16 /* tokens */

bool chat_header_is_stop(const int32_t *stops, int32_t stop_count, int32_t token) {
  for (int32_t i = 0; i < stop_count; i++)
    if (stops[i] == token) return true;
  return false;
}

int32_t chat_header_length(const int32_t *tokens, int32_t length, int32_t prompt_length, const int32_t *stops,
                           int32_t stop_count) {
  if (prompt_length > length) return 0;
  for (int32_t n = 0; n <= HEADER_MAX && n < prompt_length; n++)
    if (chat_header_is_stop(stops, stop_count, tokens[prompt_length - 1 - n])) return n;
  return 0;
}
