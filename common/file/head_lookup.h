/* head_lookup.h - tells draft heads from models, and finds a target's head in a folder of heads. */
#pragma once

#include "common/file/model_file.h"
#include <limits.h>

/* Is this a head, by what its GGUF or its folder's config.json says of itself? Nothing is checked. */
bool head_lookup_is_head(const char *path);
/* The GGUF in this folder that is a head of the target's shape and carries its vocabulary; of several the
 * first by name. False: there is none, or no such folder. */
bool head_lookup_find(const char *folder, const model_file *target, char out[PATH_MAX]);
