#include "orchestrator/ledger/ledger_copy.h"

#include "orchestrator/ledger/ledger_database.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK 65536

static const char *const beside[] = {"-wal", "-shm", "-journal", ""}; /* the ledger itself is the last one */
enum { BESIDE = sizeof beside / sizeof *beside };

typedef struct file_name {
  char text[LEDGER_PATH_MAX + 16];
} file_name;

static file_name name_of(const char *path, const char *suffix) {
  file_name n;
  snprintf(n.text, sizeof n.text, "%.*s%s", LEDGER_PATH_MAX - 1, path, suffix);
  return n;
}

static int io_error(const char *what, const char *path, err *e) {
  return err_set(e, ERR_IO, "cannot %s %.250s: %s", what, path, strerror(errno));
}

/* ---- copies ---- */

static int copy_bytes(int in, int out, const char *from, const char *to, err *e) {
  char data[CHUNK];
  ssize_t n;
  while ((n = read(in, data, sizeof data)) > 0)
    if (write(out, data, (size_t)n) != n) return io_error("write", to, e);
  return n < 0 ? io_error("read", from, e) : ERR_OK;
}

static int copy_file(const char *from, const char *to, err *e) {
  int in = open(from, O_RDONLY | O_CLOEXEC | O_NONBLOCK), code;
  if (in < 0 && errno == ENOENT) return ERR_GONE;
  if (in < 0) return io_error("read", from, e);
  int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  code = out < 0 ? io_error("make", to, e) : copy_bytes(in, out, from, to, e);
  close(in);
  if (out >= 0 && close(out) != 0 && code == ERR_OK) code = io_error("write", to, e);
  return code;
}

int ledger_copy_make(const char *from, const char *to, err *e) {
  int code = copy_file(from, to, e);
  if (code == ERR_GONE) return err_set(e, ERR_GONE, "there is no ledger %.250s", from);
  if (code == ERR_OK) code = copy_file(name_of(from, "-wal").text, name_of(to, "-wal").text, e);
  return code == ERR_GONE ? ERR_OK : code;
}

/* ---- the first page ---- */

static void put(uint8_t *at, uint32_t n) {
  for (int i = 0; i < 4; i++) at[i] = (uint8_t)(n >> (24 - 8 * i));
}

/* Offsets of its header, in bytes (sqlite.org/fileformat.html); numbers are big-endian. */
enum { PAGE_COUNT = 28, FREE_FIRST = 32, FREE_COUNT = 36 };

int ledger_copy_first_page(const char *from, const char *to, err *e) {
  uint8_t page[LEDGER_COPY_PAGE];
  struct stat info;
  int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CLOEXEC);
  bool ok = in >= 0 && out >= 0 && fstat(out, &info) == 0 &&
            pread(in, page, sizeof page, 0) == (ssize_t)sizeof page;
  if (ok) {
    put(page + PAGE_COUNT, (uint32_t)(info.st_size / LEDGER_COPY_PAGE));
    put(page + FREE_FIRST, 0);
    put(page + FREE_COUNT, 0);
    ok = pwrite(out, page, sizeof page, 0) == (ssize_t)sizeof page;
  }
  int code = ok ? ERR_OK : io_error("write the first page of", to, e);
  if (in >= 0) close(in);
  if (out >= 0) close(out);
  return code;
}

/* ---- names ---- */

void ledger_copy_remove(const char *path) {
  for (int i = 0; i < BESIDE; i++) unlink(name_of(path, beside[i]).text);
}

int ledger_copy_rename(const char *from, const char *to, err *e) {
  for (int i = 0; i < BESIDE; i++) {
    file_name old = name_of(from, beside[i]);
    if (rename(old.text, name_of(to, beside[i]).text) != 0 && (errno != ENOENT || !*beside[i]))
      return io_error("rename", old.text, e);
  }
  return ERR_OK;
}
