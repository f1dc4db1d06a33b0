/* folder_builder.h - model folders in Hugging Face's form, for tests: safetensors bytes from a header's text,
 * files in a directory of their own. Include after cmocka.h. */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/scratch.h"

typedef struct folder {
  char path[SCRATCH_MAX];
  char files[8][64]; /* names, to be removed */
  int count;
} folder;

folder folder_make(void);

void folder_put(folder *f, const char *name, const void *data, size_t size);

void folder_put_text(folder *f, const char *name, const char *text);

void folder_remove(folder *f);

/* The header's length, the header, `data` zero bytes; malloc'd, *size says how many. */
uint8_t *safetensors_bytes(const char *header, size_t data, size_t *size);
