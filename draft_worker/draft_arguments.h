/* draft_arguments.h - the command line of tandem-draft. */
#pragma once

#include "common/file/gguf.h"
#include "wire/worker_arguments.h"

typedef struct draft_arguments {
  worker_arguments worker; /* context 0: the drafter's own default; sessions: those of a model */
  const char *draft;       /* the method, with what belongs to it; never NULL */
  const char *model_draft; /* NULL: not given */
  uint64_t replay_seed;
  gguf_type type;  /* of a head's matrices; GGUF_F32: not given */
  int32_t layers;  /* 0: all */
  int32_t outputs; /* of a head, which all sessions read; 0: not given */
  int32_t rows;
  int32_t candidates; /* 0: all */
  bool turns;
} draft_arguments;

/* A wrong flag ends the program. */
draft_arguments draft_arguments_parse(int argc, char **argv);
