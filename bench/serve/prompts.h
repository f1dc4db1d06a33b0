/* prompts.h - the bodies of a load's requests, made from a file of JSON lines: each has "messages", "turns"
 * (of which the first is asked), "prompt" or "prompt_ids"; other keys are ignored. As `tandem bench spec`
 * reads them. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct prompts_options {
  const char *model;  /* that requests name */
  bool chat;          /* for /v1/chat/completions; otherwise for /v1/completions */
  int32_t max_tokens; /* of an answer */
  double temperature;
  int64_t seed;        /* -1: none is sent */
  bool no_speculation; /* tandem's {"speculation": {"enabled": false}} is sent, which others ignore */
} prompts_options;

/* `count` bodies, the file's prompts in order and again from the first one; 0: one for each prompt. *out
 * [*out_count], each NUL-terminated; release with prompts_free. ERR_ARG: the file cannot be read; ERR_FORMAT
 * names the line; ERR_NOMEM. */
int prompts_read(char ***out, size_t *out_count, const char *path, size_t count, const prompts_options *o,
                 err *e);
void prompts_free(char **bodies, size_t count);
