#include "orchestrator/service/api/server_json.h"

#include "orchestrator/service/api/tokens_json.h"
#include "version.h"

static json_t *params_of(const request *r) {
  const sampler_options *s = &r->sampling;
  json_t *stops = json_array();
  for (int32_t i = 0; i < r->stop_count; i++) json_array_append_new(stops, json_string(r->stops[i]));
  return json_pack("{s:i, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:o, s:b}", "n_predict", r->max_tokens,
                   "temperature", s->temperature, "top_k", s->top_k, "top_p", s->top_p, "min_p", s->min_p,
                   "repeat_penalty", s->repeat_penalty, "presence_penalty", s->presence_penalty,
                   "frequency_penalty", s->frequency_penalty, "stop", stops, "speculation",
                   request_wants_draft(r));
}

static json_t *token_of(const tokenizer *t, int32_t id) {
  return t && id >= 0 ? tokens_json_spelling(t, id) : json_string("");
}

json_t *server_json_props(const server_about *a) {
  const tokenizer *t = a->model->tokens;
  size_t size = 0;
  const char *template = t ? tokenizer_template(t, &size) : NULL;
  json_t *text = json_stringn(template ? template : "", template ? size : 0);
  json_t *settings = json_pack("{s:i, s:o}", "n_ctx", a->defaults->context, "params", params_of(a->defaults));
  return json_pack("{s:o, s:i, s:s, s:o, s:o, s:o, s:{s:b, s:b}, s:s}", "default_generation_settings",
                   settings, "total_slots", a->slots, "model_path", a->model_path, "chat_template",
                   text ? text : json_string(""), "bos_token", token_of(t, t ? tokenizer_bos(t) : -1),
                   "eos_token", token_of(t, t ? tokenizer_eos(t) : -1), "modalities", "vision", 0, "audio", 0,
                   "build_info", TANDEM_VERSION);
}

static json_t *slot_of(int32_t id, int32_t context, const call *owner, const call_choice *choice) {
  json_t *o = json_pack("{s:i, s:i, s:b}", "id", id, "n_ctx", context, "is_processing", choice != NULL);
  if (!choice) return o;
  const request *r = &owner->options.request;
  int32_t done = choice->completion.fed;
  json_object_set_new(o, "speculative", json_boolean(request_wants_draft(r)));
  json_object_set_new(o, "request", json_string(owner->id));
  json_object_set_new(o, "choice", json_integer(choice->index));
  json_object_set_new(o, "n_prompt_tokens", json_integer((json_int_t)choice->completion.prompt.count));
  json_object_set_new(o, "params", params_of(r));
  json_object_set_new(o, "next_token",
                      json_pack("{s:i, s:i}", "n_decoded", done, "n_remain", r->max_tokens - done));
  return o;
}

json_t *server_json_slots(const server_about *a, const call *calls) {
  json_t *slots = json_array();
  int32_t id = 0, context = a->defaults->context;
  for (const call *c = calls; c; c = c->next)
    for (int32_t i = 0; i < c->count; i++)
      if (c->choices[i].begun && !c->choices[i].over)
        json_array_append_new(slots, slot_of(id++, context, c, &c->choices[i]));
  while (id < a->slots) json_array_append_new(slots, slot_of(id++, context, NULL, NULL));
  return slots;
}
