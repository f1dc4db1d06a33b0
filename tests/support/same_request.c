#include "tests/support/same_request.h"

bool same_text(const char *a, const char *b) {
  return a && b ? strcmp(a, b) == 0 : a == b;
}

bool same_prompt(const request *a, const request *b) {
  bool same = a->prompt_kind == b->prompt_kind && a->text_size == b->text_size &&
              a->ids.count == b->ids.count && a->message_count == b->message_count;
  if (same && a->text) same = memcmp(a->text, b->text, a->text_size) == 0;
  if (same && a->ids.count) same = memcmp(a->ids.ids, b->ids.ids, a->ids.count * sizeof *a->ids.ids) == 0;
  for (int32_t i = 0; same && i < a->message_count; i++)
    same = same_text(a->messages[i].role, b->messages[i].role) &&
           a->messages[i].size == b->messages[i].size &&
           same_text(a->messages[i].content, b->messages[i].content);
  return same;
}

bool same_sampling(const sampler_options *a, const sampler_options *b) {
  return a->temperature == b->temperature && a->top_k == b->top_k && a->top_p == b->top_p &&
         a->min_p == b->min_p && a->repeat_penalty == b->repeat_penalty && a->seed == b->seed &&
         a->choice == b->choice && a->presence_penalty == b->presence_penalty &&
         a->frequency_penalty == b->frequency_penalty;
}

bool same_options(const request *a, const request *b) {
  bool same = a->stop_count == b->stop_count && a->max_tokens == b->max_tokens && a->context == b->context &&
              a->budget == b->budget && a->selfcheck == b->selfcheck && a->lockstep == b->lockstep &&
              a->speculate == b->speculate && a->single_token == b->single_token && a->raw == b->raw &&
              a->no_special == b->no_special && a->seed_given == b->seed_given;
  for (int32_t i = 0; same && i < a->stop_count; i++) same = same_text(a->stops[i], b->stops[i]);
  same = same && a->bias_count == b->bias_count;
  for (int32_t i = 0; same && i < a->bias_count; i++)
    same = a->bias.tokens[i] == b->bias.tokens[i] && a->bias.values[i] == b->bias.values[i];
  return same && same_text(a->grammar, b->grammar) && same_text(a->system, b->system) &&
         same_sampling(&a->sampling, &b->sampling);
}
