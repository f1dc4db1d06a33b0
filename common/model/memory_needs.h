/* memory_needs.h - whether a model and its cache fit into a device's memory; if not, the refusal gives the
 * numbers and says what would fit. */
#pragma once

#include "common/base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct memory_needs {  /* in bytes; 0: what is there already, or is not wanted */
  size_t weights, activations; /* about */
  size_t rows, stage;          /* of the cache: of all its sessions' tokens; of trees */
  int32_t sessions, context;   /* rows: of so many sessions of so many tokens, */
  int32_t blocks;              /* or, if not 0, of so many blocks */
  bool in_host;                /* rows are in the host's memory, and the rest in the device's own */
} memory_needs;

/* ERR_NOMEM: they are more than `left` bytes, which a device of this name has left; or, where that is NULL,
 * which --kv-memory allows. Rows in the host's memory are compared with what the host has left; with NULL as
 * all others. */
int memory_needs_check(const memory_needs *n, size_t left, const char *device, err *e);
/* ERR_NOMEM in any case: it was asked for, and was not there. */
int memory_needs_refuse(const memory_needs *n, size_t left, const char *device, err *e);
/* The same of rows in the host's memory. */
int memory_needs_refuse_in_host(const memory_needs *n, err *e);
