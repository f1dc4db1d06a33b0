/* job_trace.h - the batches of a target as spans of a trace_file: prefill, verify, plain (verifies without
 * nodes) or fusion, with the rows, the new tokens, and the sessions. */
#pragma once

#include "common/base/trace_file.h"
#include "target_worker/engine_job.h"

void job_trace_add(trace_file *t, int64_t lane, const engine_batch *batch, const engine_results *results,
                   uint64_t from_us, uint64_t to_us);
