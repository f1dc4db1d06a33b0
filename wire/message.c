#include "wire/message.h"

const char *msg_name(msg_type type) {
  switch (type) {
#define MSG_CASE(name, number)                                                                               \
  case number:                                                                                               \
    return #name;
    MSG_LIST(MSG_CASE)
#undef MSG_CASE
  }
  return "?";
}

sampler_options msg_sampling(const msg_options *o) {
  return (sampler_options){o->temperature,    o->top_k, o->top_p, o->min_p,
                           o->repeat_penalty, o->seed,  o->choice};
}

const char *msg_open_misfit(const msg_open *o, const prefix *held) {
  hash16 h = {{0}};
  if (o->base_length > 0) {
    if (!held || held->seed != o->hash_seed || !prefix_has(held, o->base_length, o->base_hash))
      return "the base is not held here";
    h = o->base_hash;
  }
  for (int32_t i = 0; i < o->token_count; i++) h = hash_next(h, o->hash_seed, o->tokens[i]);
  return hash_equal(h, o->hash) ? NULL : "the tokens do not give the hash that came with them";
}
