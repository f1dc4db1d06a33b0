/* file_hash.h - the hash of every byte of a file: XXH3_128, seed 0, as `xxhsum -H2' prints it.
 *
 * Reading a large file takes seconds, so programs remember hashes for each other, in a folder `hashes' of the
 * user's cache (user_folder.h): a small file for each device and inode, which counts as long as the size and
 * both times of change are the same to the nanosecond. Where nothing can be kept, every program reads for
 * itself. */
#pragma once

#include "common/base/hash.h"
#include "common/file/mapped_file.h"
#include <stdatomic.h>
#include <stdbool.h>

/* A file that was changed so short a time ago is not remembered: the clock of a file system is coarse, and a
 * change just afterwards might not show. */
#define FILE_HASH_SETTLED_NS INT64_C(2000000000)

/* Without reading the file. False: not remembered. */
bool file_hash_recall(const mapped_file *m, hash16 *out);
/* Reads the file, and remembers. False: *stop (NULL: none) was set by somebody else meanwhile. */
bool file_hash_read(const mapped_file *m, const atomic_bool *stop, hash16 *out);
