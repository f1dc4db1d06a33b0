/* target_arguments.h - the command line of tandem-target. */
#pragma once

#include "common/base/cpus.h"
#include "common/model/model.h"
#include "wire/worker_arguments.h"

#define TARGET_DEFAULT_SESSIONS 4
#define TARGET_FAULT_VARIABLE   "TANDEM_FAULT" /* of the environment, for tests */

typedef struct target_arguments {
  worker_arguments worker; /* context 0: the model's own, at most 4096; device: never NULL */
  const char *bind, *advertise, *record_steps;
  const char *head; /* a draft head's file; NULL: not given */
  int32_t kv_blocks;
  int32_t kv_virtual; /* 0, 1 */
  ops_math math;
  int32_t isa; /* a word of --isa, which is worker.device by another name; -1: not given */
  bool list_devices, self_test;
  int32_t pin[CPUS_MAX], pin_count;
} target_arguments;

/* A wrong flag ends the program. */
target_arguments target_arguments_parse(int argc, char **argv);
