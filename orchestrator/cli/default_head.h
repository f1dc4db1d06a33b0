/* default_head.h - the draft head that comes with tandem for a model. */
#pragma once

#include "common/file/model_file.h"
#include "orchestrator/cli/flags.h"

/* Where the user has named no draft and no budget of 0, and a head for this model lies in the folder `heads`
 * of the sources that this program was built from, or in the one that was installed with it: drafts with that
 * head. Otherwise nothing changes. */
void default_head_use(flags *f, const model_file *target);
/* The same with the folders in which to look, [count]. */
void default_head_use_from(flags *f, const model_file *target, const char *const *folders, int count);
