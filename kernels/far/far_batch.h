/* far_batch.h - a batch in one piece, and what ops.h says of a batch. */
#pragma once

#include "kernels/far/far_handles.h"

/* *out is the batch, with its arrays in `to`. Returns the arrays' bytes; with `to` NULL that is all. */
size_t far_batch_copy(ops_batch *out, const ops_batch *b, void *to);
/* Ends the program when the batch breaks a rule. kv may be NULL. */
void far_batch_check(const ops_batch *b, const far_thing *kv);
