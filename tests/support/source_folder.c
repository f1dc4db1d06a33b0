#include "tests/support/source_folder.h"

const char *source_folder(void) {
  const char *root = getenv("TANDEM_TEST_ROOT");
  return root && *root ? root : TANDEM_SOURCE_DIR;
}
