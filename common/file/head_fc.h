/* head_fc.h - the name of a draft head's fc, the first linear, which makes what the head reads out of the
 * target's states. Two programs that give it the same name make the same of the same states. */
#pragma once

#include "common/file/head_file.h"

/* Of the weights as they are now, after head_file_settle: XXH3_128, seed 0, of fc's values as float 32, row
 * by row; where a norm comes before it, its weights and its epsilon follow. Zero: without memory, or of a
 * type whose values are not read (tensor_values.h). */
hash16 head_fc_hash(const head_file *f);
