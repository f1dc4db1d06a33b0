/* bench_prompts.h - the prompts of a benchmark: a file of JSON lines, each with "prompt_ids", "messages",
 * "turns" (of which the first is asked) or "prompt", and perhaps "category". Other keys are ignored. */
#pragma once

#include "orchestrator/cli/input_file.h"
#include "orchestrator/service/request.h"

#define BENCH_PROMPTS_CATEGORIES_MAX 64

typedef struct bench_prompt {
  request request;
  int32_t category; /* index in `categories` */
  long line;        /* its number in the file, from 1 */
} bench_prompt;

typedef struct bench_prompts {
  bench_prompt *list; /* [count] */
  size_t count;
  char *categories[BENCH_PROMPTS_CATEGORIES_MAX]; /* [category_count], in the order of the file */
  int32_t category_count;
} bench_prompts;

/* What a line does not say is as in `defaults`. Release with bench_prompts_fini, also after an error.
 * ERR_FORMAT, ERR_ARG, ERR_LIMIT name the line; ERR_NOMEM. */
int bench_prompts_read(bench_prompts *p, const input_file *in, const request *defaults, int32_t vocabulary,
                       err *e);
void bench_prompts_fini(bench_prompts *p);
