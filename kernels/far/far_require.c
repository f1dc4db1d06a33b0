#include "kernels/far/far_require.h"

#include <stdio.h>
#include <stdlib.h>

void far_require(bool kept, const char *rule) {
  if (kept) return;
  fprintf(stderr, "far device: %s\n", rule);
  abort();
}
