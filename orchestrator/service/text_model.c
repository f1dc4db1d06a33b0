#include "orchestrator/service/text_model.h"

static int open_file(text_model *m, const char *path, int (*open)(model_file **out, const char *path, err *e),
                     err *e) {
  *m = (text_model){0};
  int rc = open(&m->file, path, e);
  if (rc) return rc;
  m->config = *model_file_config(m->file);
  m->fingerprint = model_file_fingerprint(m->file);
  return ERR_OK;
}

int text_model_open(text_model *m, const char *path, err *e) {
  return open_file(m, path, model_file_open, e);
}

int text_model_open_text(text_model *m, const char *path, err *e) {
  return open_file(m, path, model_file_open_text, e);
}

bool text_model_hash(text_model *m, const atomic_bool *stop) {
  return !hash_is_zero(m->hash) || model_file_read_hash(m->file, stop, &m->hash);
}

bool text_model_is(text_model *m, hash16 recorded) {
  return hash_equal(recorded, m->fingerprint) || (text_model_hash(m, NULL) && hash_equal(recorded, m->hash));
}

static void add_stop(text_model *m, int64_t id) {
  if (id < 0 || id >= m->config.vocab || m->stop_count == WIRE_STOPS_MAX) return;
  for (int32_t i = 0; i < m->stop_count; i++)
    if (m->stops[i] == id) return;
  m->stops[m->stop_count++] = (int32_t)id;
}

/* The tokens that end a text by the file and the vocabulary, and a message by the template. */
static void find_stops(text_model *m) {
  int32_t ids[MODEL_STOPS_MAX], count = model_file_stops(m->file, ids);
  if (m->chat) add_stop(m, chat_template_turn_end(m->chat));
  for (int32_t i = 0; i < count; i++) add_stop(m, ids[i]);
  const int32_t *stops = m->tokens ? tokenizer_stops(m->tokens, &count) : NULL;
  for (int32_t i = 0; stops && i < count; i++) add_stop(m, stops[i]);
}

static int open_vocabulary(text_model *m, const char *template, err *e) {
  const gguf *g = model_file_gguf(m->file);
  const char *json = model_file_tokenizer(m->file);
  if (!g && !json) {
    int rc = text_model_needs_text(m, &m->chat_error);
    return template ? err_set(e, rc, "%s", m->chat_error.text) : ERR_OK;
  }
  int rc = g ? tokenizer_open(&m->tokens, g, e)
             : tokenizer_open_json(&m->tokens, json, model_file_config(m->file)->vocab, e);
  if (rc) return rc;
  rc = chat_template_open(&m->chat, m->tokens, template, &m->chat_error);
  if (rc && template) return err_set(e, rc, "%s", m->chat_error.text);
  return ERR_OK;
}

int text_model_load(text_model *m, const char *template, err *e) {
  int rc = open_vocabulary(m, template, e);
  if (rc) return rc;
  find_stops(m);
  return ERR_OK;
}
hash16 text_model_vocabulary(const text_model *m) {
  return m->tokens ? tokenizer_hash(m->tokens) : (hash16){{0}};
}

int text_model_needs_text(const text_model *m, err *e) {
  if (m->tokens) return ERR_OK;
  return err_set(e, ERR_UNSUPPORTED,
                 "this model has no vocabulary, so that it takes no text: give token ids (tandem batch, "
                 "\"prompt_ids\")");
}

void text_model_close(text_model *m) {
  if (m->chat) chat_template_close(m->chat);
  if (m->tokens) tokenizer_close(m->tokens);
  model_file_close(m->file);
  *m = (text_model){0};
}

int text_model_context(const text_model *m, int32_t wanted, int32_t *out, err *e) {
  int32_t most = m->config.context;
  if (wanted > most)
    return err_set(e, ERR_ARG, "a context of %d tokens is asked for, but this model was made for %d at most",
                   wanted, most);
  *out = wanted ? wanted : most < TEXT_MODEL_CONTEXT_DEFAULT ? most : TEXT_MODEL_CONTEXT_DEFAULT;
  return ERR_OK;
}

int text_model_messages(const text_model *m, const chat_message *messages, int32_t count, tokenizer_ids *out,
                        err *e) {
  if (!m->chat) return err_set(e, m->chat_error.code, "%s", m->chat_error.text);
  return chat_template_render(m->chat, messages, count, out, e);
}
