/* passes.h - a load with each number of streams, with a draft and without one, and how they are told. */
#pragma once

#include "bench/serve/figures.h"
#include "bench/serve/prompts.h"

#define PASSES_STREAMS_MAX 8

typedef struct passes_options {
  load_options load; /* but for the number of streams */
  int32_t streams[PASSES_STREAMS_MAX], streams_count;
  bool plain, drafted;     /* which of the two; both: after each other */
  const char *path;        /* of the prompts */
  size_t count;            /* of requests in each load; 0: as many as prompts */
  prompts_options prompts; /* but for no_speculation */
} passes_options;

typedef struct pass {
  int32_t streams;
  bool plain;
  figures figures;
  load_answer *answers; /* [figures.answers] */
  int64_t differing;    /* answers that differ from those without a draft, same streams; -1: not compared */
  double gain;          /* tokens a second over those without a draft; 0: not compared */
} pass;

typedef struct passes {
  pass list[2 * PASSES_STREAMS_MAX];
  int32_t count;
} passes;

/* Calls `each` when a pass is done. Release with passes_free, also after an error. Errors of prompts_read and
 * load_run. */
int passes_run(passes *p, const passes_options *o, void (*each)(void *context, const pass *done),
               void *context, err *e);
void passes_free(passes *p);
