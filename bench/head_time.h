/* head_time.h - what a forward of a draft head takes, for a few rows and threads. */
#pragma once

#include "common/file/head_file.h"
#include "common/file/model_file.h"

/* Prints a line a count of threads (1 and 2) with the time of a forward of 1, 2, 4 and 8 rows: siblings with
 * a state each, behind a context, with their lists of candidates and their states, as a drafter asks for
 * them. The least and the median of `repetitions`, in which the counts of rows take turns. A second line has
 * the same where the caches hold other memory at each forward's begin, as after a step of the target. common:
 * head_shares. */
int head_time_print(const model_file *target, const head_file *head, int32_t common, const char *name,
                    int32_t repetitions, err *e);
