/* cuda_mps.h - NVIDIA's Multi-Process Service, with which several processes compute on a GPU at the same time
 * instead of by slices of time. Its control daemon runs before the programs that it is for. Source: NVIDIA,
 * "Multi-Process Service", CUDA_MPS_PIPE_DIRECTORY. */
#pragma once

#include <stdbool.h>

/* Does the daemon run that this program and those that it starts would use? False where it is not known. */
bool cuda_mps_runs(void);
