#include "orchestrator/cli/input_file.h"

#include "common/base/output_file.h"
#include "common/base/plain_text.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INPUT_FIRST 65536 /* bytes */

static int grow(input_file *in, size_t *capacity) {
  if (in->size + 1 < *capacity) return ERR_OK;
  size_t wanted = *capacity ? 2 * *capacity : INPUT_FIRST;
  char *p = realloc(in->data, wanted);
  if (!p) return ERR_NOMEM;
  in->data = p;
  *capacity = wanted;
  return ERR_OK;
}

static int read_all(input_file *in, int fd, const char *name, size_t size_max, err *e) {
  size_t capacity = 0;
  for (;;) {
    if (grow(in, &capacity)) return err_set(e, ERR_NOMEM, "out of memory for %s", name);
    ssize_t n = read(fd, in->data + in->size, capacity - 1 - in->size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return err_set(e, ERR_IO, "cannot read %s: %s", name, strerror(errno));
    if (n == 0) break;
    in->size += (size_t)n;
    if (in->size > size_max)
      return err_set(e, ERR_LIMIT, "%s has more than %zu bytes, the most that is taken", name, size_max);
  }
  in->data[in->size] = 0;
  return ERR_OK;
}

int input_file_read(input_file *in, const char *path, size_t size_max, err *e) {
  *in = (input_file){0};
  bool is_stdin = strcmp(path, "-") == 0;
  int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return err_set(e, ERR_IO, "cannot read %s: %s", path, strerror(errno));
  output_file_spare(is_stdin ? "/dev/stdin" : path);
  int rc = read_all(in, fd, is_stdin ? "stdin" : path, size_max, e);
  if (!is_stdin) close(fd);
  if (rc == ERR_OK) rc = plain_text_check(in->data, in->size, is_stdin ? "stdin" : path, e);
  if (rc == ERR_OK) in->data[in->size = plain_text_clean(in->data, in->size)] = 0;
  if (rc) input_file_fini(in);
  return rc;
}

void input_file_fini(input_file *in) {
  free(in->data);
  *in = (input_file){0};
}
