#include "orchestrator/service/prompt.h"
#include "common/file/printable.h"

#include <stdlib.h>
#include <string.h>

static int no_memory(err *e) {
  return err_set(e, ERR_NOMEM, "out of memory for the prompt");
}

/* Some vocabularies begin every text with a token of their own; a chat template writes it itself. */
static int add_beginning(const request *r, const text_model *m, tokenizer_ids *out, err *e) {
  int32_t bos = tokenizer_bos(m->tokens);
  if (!tokenizer_adds_bos(m->tokens) || bos < 0) return ERR_OK;
  size_t size;
  const char *spelling = tokenizer_piece(m->tokens, bos, &size);
  bool written = !r->no_special && r->text_size >= size && memcmp(r->text, spelling, size) == 0;
  return !written && tokenizer_ids_add(out, bos) ? no_memory(e) : ERR_OK;
}

static int encode_raw(const request *r, const text_model *m, tokenizer_ids *out, err *e) {
  int rc = add_beginning(r, m, out, e);
  unsigned how = r->no_special ? 0 : TOKENIZER_SPECIAL;
  return rc ? rc : tokenizer_encode(m->tokens, r->text, r->text_size, how, out, e);
}

/* The request's system message comes first, unless the conversation has one of its own. */
static int encode_messages(const request *r, const chat_message *messages, int32_t count, const text_model *m,
                           tokenizer_ids *out, err *e) {
  if (!r->system || strcmp(messages[0].role, "system") == 0)
    return text_model_messages(m, messages, count, out, e);
  chat_message *all = malloc((size_t)(count + 1) * sizeof *all);
  if (!all) return no_memory(e);
  all[0] = (chat_message){.role = "system", .content = r->system, .size = strlen(r->system)};
  memcpy(all + 1, messages, (size_t)count * sizeof *all);
  int rc = text_model_messages(m, all, count + 1, out, e);
  free(all);
  return rc;
}

static int encode_text(const request *r, const text_model *m, tokenizer_ids *out, err *e) {
  int rc = text_model_needs_text(m, e);
  if (rc) return rc;
  if (r->text_size == 0) return err_set(e, ERR_ARG, "the prompt is empty: give some text");
  if (r->raw) return encode_raw(r, m, out, e);
  chat_message message = {.role = "user", .content = r->text, .size = r->text_size};
  return encode_messages(r, &message, 1, m, out, e);
}

int prompt_encode(const request *r, const text_model *m, tokenizer_ids *out, err *e) {
  int rc = ERR_OK;
  switch (r->prompt_kind) {
  case REQUEST_TEXT:
    return encode_text(r, m, out, e);
  case REQUEST_MESSAGES:
    return encode_messages(r, r->messages, r->message_count, m, out, e);
  case REQUEST_IDS:
    for (size_t i = 0; rc == ERR_OK && i < r->ids.count; i++) rc = tokenizer_ids_add(out, r->ids.ids[i]);
    return rc ? no_memory(e) : ERR_OK;
  case REQUEST_NO_PROMPT:
    break;
  }
  return err_set(e, ERR_ARG, "there is no prompt");
}

/* Some vocabularies have more tokens than their model has rows. */
static int refuse_token(const text_model *m, int32_t id, err *e) {
  size_t size = 0;
  const char *text =
      m->tokens && id >= 0 && id < tokenizer_size(m->tokens) ? tokenizer_piece(m->tokens, id, &size) : NULL;
  char shown[PRINTABLE_TEXT_MAX];
  if (!text) return err_set(e, ERR_ARG, "token %d is not in this vocabulary of %d", id, m->config.vocab);
  return err_set(
      e, ERR_ARG,
      "token %d, %s, is in the vocabulary, but this model of %d tokens was not made with it: leave it out",
      id, printable_text(shown, text, size), m->config.vocab);
}

int prompt_check(const text_model *m, const int32_t *ids, size_t count, int32_t context, err *e) {
  if (count == 0) return err_set(e, ERR_ARG, "the prompt is empty: none of its bytes has a token");
  if (count >= (size_t)context)
    return err_set(
        e, ERR_LIMIT,
        "the prompt has %zu tokens, but the context is %d and must hold the answer too: shorten the "
        "prompt, or make the context longer (this model: up to %d)",
        count, context, m->config.context);
  for (size_t i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= m->config.vocab) return refuse_token(m, ids[i], e);
  return ERR_OK;
}
