#include "common/file/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int map(mapped_file *m, int fd, const char *path, const char *what, err *e) {
  struct stat s;
  if (fstat(fd, &s)) return err_set(e, ERR_IO, "cannot read %s %s: %s", what, path, strerror(errno));
  if (!S_ISREG(s.st_mode))
    return err_set(e, ERR_IO,
                   "%s is not a file: give a .gguf model, or a folder with config.json and model.safetensors",
                   path);
  if (s.st_size == 0) return err_set(e, ERR_FORMAT, "%s is empty: download it again", path);
  void *data = mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return err_set(e, ERR_IO, "cannot map %s %s: %s", what, path, strerror(errno));
  *m = (mapped_file){data, (size_t)s.st_size};
  return ERR_OK;
}

/* NONBLOCK: a named pipe is refused, not waited for. */
int mapped_file_open(mapped_file *m, const char *path, const char *what, err *e) {
  *m = (mapped_file){0};
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return err_set(e, ERR_IO, "cannot open %s %s: %s", what, path, strerror(errno));
  int rc = map(m, fd, path, what, e);
  close(fd);
  return rc;
}

void mapped_file_close(mapped_file *m) {
  if (m->data) munmap((void *)m->data, m->size);
  *m = (mapped_file){0};
}
