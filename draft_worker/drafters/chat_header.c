#include "draft_worker/drafters/chat_header.h"

#define HEADER_MAX 16 /* tokens */

bool chat_header_is_stop(const int32_t *stops, int32_t stop_count, int32_t token) {
  for (int32_t i = 0; i < stop_count; i++)
    if (stops[i] == token) return true;
  return false;
}

int32_t chat_header_length(const int32_t *prompt, int32_t length, const int32_t *stops, int32_t stop_count) {
  for (int32_t n = 0; n <= HEADER_MAX && n < length; n++)
    if (chat_header_is_stop(stops, stop_count, prompt[length - 1 - n])) return n;
  return 0;
}
