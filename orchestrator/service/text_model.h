/* text_model.h - what the orchestrator takes from a model file: its shape, vocabulary and chat template. A
 * model without a vocabulary takes prompts as ids, and its answers are ids. */
#pragma once

#include "common/file/model_file.h"
#include "common/text/chat_template.h"
#include "wire/message.h"

typedef struct text_model {
  model_file *file;
  model_config config;
  hash16 fingerprint;
  hash16 hash;       /* of the whole file, once text_model_hash has told it; zero: not known */
  tokenizer *tokens; /* from text_model_load on, as all below; NULL: the model has no vocabulary */
  /* NULL: there is no vocabulary, or the file's template is not built in, as chat_error says. */
  chat_template *chat;
  err chat_error;
  int32_t stops[WIRE_STOPS_MAX]; /* tokens that end an answer */
  int32_t stop_count;
} text_model;

/* Opens and checks the file, which is cheap. The errors of model_file_open. */
int text_model_open(text_model *m, const char *path, err *e);
/* The same for text alone: a file with a vocabulary but no weights is accepted. */
int text_model_open_text(text_model *m, const char *path, err *e);
/* Reads the vocabulary. `template`: the chat template's name, NULL: the file's own. The errors of
 * tokenizer_open and of chat_template_open with a name; a file's template that is not built in is no error,
 * and neither is a missing vocabulary. */
int text_model_load(text_model *m, const char *template, err *e);
void text_model_close(text_model *m); /* closes whatever has been opened */

/* Learns m->hash (model_file_read_hash). False: *stop (NULL: none) was set meanwhile. */
bool text_model_hash(text_model *m, const atomic_bool *stop);
/* Is this the model that a session's record names by its hash, or by its fingerprint as older versions did?
 * It may be read for that. */
bool text_model_is(text_model *m, hash16 recorded);

#define TEXT_MODEL_CONTEXT_DEFAULT 4096 /* tokens, or the model's context if that is less */
/* Sets *out to the context of a session for which `wanted` tokens are asked (0: the default). ERR_ARG when
 * the model has less. */
int text_model_context(const text_model *m, int32_t wanted, int32_t *out, err *e);

hash16 text_model_vocabulary(const text_model *m); /* zero: none */
/* Fails with the error above where the model has no vocabulary. */
int text_model_needs_text(const text_model *m, err *e);

/* Appends the ids of messages, rendered by the chat template. ERR_FORMAT (not UTF-8), ERR_ARG, ERR_LIMIT,
 * ERR_UNSUPPORTED (no template, or no vocabulary). */
int text_model_messages(const text_model *m, const chat_message *messages, int32_t count, tokenizer_ids *out,
                        err *e);
