/* head_file_parts.h - what an opened draft head consists of, for the files that make it smaller or write it.
 */
#pragma once

#include "common/file/head_config.h"
#include "common/file/head_roles.h"
#include "common/file/safetensors.h"

struct head_file {
  gguf *file; /* one of these two */
  safetensors *folder;
  head_config config;
  gguf_tensor tensors[HEAD_ROLE_COUNT]; /* data NULL: there is none */
  void *copies[HEAD_ROLE_COUNT];        /* a tensor's data where it is not the file's; to be freed */
  gguf_tensor map;                      /* of rows (head_file_map); data NULL: there is none */
  void *map_copy;                       /* its data where it is not the file's; to be freed */
  int32_t *ids;                         /* [draft_vocab] or NULL */
};
