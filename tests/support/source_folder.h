/* source_folder.h - where tests find the model and the golden files. */
#pragma once

#include <stdlib.h>

/* The repository that the test was built from; in a copy of the binaries on another machine it is the
 * environment's TANDEM_TEST_ROOT. */
const char *source_folder(void);
