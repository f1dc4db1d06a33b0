/* head_target.h - a small target with a vocabulary, and heads for it as GGUFs. */
#pragma once

#include "common/file/head_gguf.h"
#include "tests/support/models.h"

#include "tests/support/head_builder.h"

enum { HEAD_TARGET_VOCABULARY = GB_SPECIAL_COUNT + 256 + GB_MERGE_COUNT };

static const head_shape HEAD_TARGET_SHAPE = {
    SUPPORT_TINY_EMBED, SUPPORT_TINY_EMBED, 2, 1, 16, 8, HEAD_TARGET_VOCABULARY, 24, {1}, 1};

/* A target with a vocabulary; of another one if some of its tokens are missing. */
typedef struct head_target_files {
  gguf_builder bytes;
  gguf *g;
  model_file *file;
} head_target_files;

head_target_files head_target_open(int missing);

void head_target_close(head_target_files *t);

/* Writes a head of this shape for the target as FOLDER/NAME. */
void head_target_put(const char *in, const char *name, const head_shape *s, const head_target_files *t);

void head_target_remove(const char *in, const char *name);
