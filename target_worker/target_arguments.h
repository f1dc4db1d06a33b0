/* target_arguments.h - the command line of tandem-target. */
#pragma once

#include "common/base/cpus.h"
#include "common/model/model.h"
#include "wire/worker_program.h"

#define TARGET_FAULT_VARIABLE "TANDEM_FAULT" /* of the environment, for tests */

typedef struct target_arguments {
  flag_values
      given; /* context 0: the model's own, at most 4096; device is never NULL; math: as model_math has it */
  int32_t pin[CPUS_MAX], pin_count;
} target_arguments;

/* A wrong flag ends the program. */
target_arguments target_arguments_parse(int argc, char **argv);
