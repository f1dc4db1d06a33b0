#include "common/model/weights_cache.h"

#include "common/file/mapped_file.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC          "tandempk"
#define FORMAT_VERSION 2
#define HEADER_BYTES   4096
#define WRITE_MAX      ((size_t)1 << 30) /* of one call */

/* Numbers are this machine's; another order of bytes shows as another version. */
typedef struct header {
  char magic[8];
  uint32_t version, header_bytes;
  char layout[WEIGHTS_LAYOUT_MAX + 1];
  hash16 model;
  uint64_t data_bytes;
  hash16 data_check; /* of the data */
  uint8_t zero[HEADER_BYTES - 104];
  hash16 check; /* of all before it */
} header;
_Static_assert(sizeof(header) == HEADER_BYTES, "the data begins on a page");

static hash16 header_check(const header *h) {
  return hash_bytes(h, offsetof(header, check));
}

static void fill_header(header *h, const weights_key *k, hash16 data_check) {
  *h = (header){.magic = MAGIC, .version = FORMAT_VERSION, .header_bytes = HEADER_BYTES};
  assert(strlen(k->layout) <= WEIGHTS_LAYOUT_MAX);
  strcpy(h->layout, k->layout);
  h->model = k->model;
  h->data_bytes = k->bytes;
  h->data_check = data_check;
  h->check = header_check(h);
}

/* What keeps a file from standing for k; NULL: nothing. */
static const char *misfit(const header *h, const weights_key *k, uint64_t file_bytes) {
  header want;
  fill_header(&want, k, h->data_check);
  if (memcmp(h->magic, want.magic, sizeof h->magic) != 0) return "is no file of packed weights";
  if (!hash_equal(h->check, header_check(h))) return "is damaged";
  if (!hash_equal(h->model, want.model)) return "belongs to another model";
  if (memcmp(h, &want, sizeof want) != 0) return "has another layout";
  return file_bytes == HEADER_BYTES + h->data_bytes ? NULL : "is not as long as it says";
}

static bool make_path(char path[PATH_MAX], const char *dir, const weights_key *k) {
  char model[33];
  hash_format(k->model, model);
  int n = snprintf(path, PATH_MAX, "%s/%s-%s.packed", dir, model, k->layout);
  return n > 0 && n < PATH_MAX;
}

/* --- reading --- */

/* Steps read the whole of it, again and again. NULL: it cannot be mapped. */
static void *map_data(int fd, size_t bytes, const char *path) {
  uint8_t *p = mmap(NULL, HEADER_BYTES + bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  if (p == MAP_FAILED) return NULL;
  madvise(p, HEADER_BYTES + bytes, MADV_HUGEPAGE); /* few systems have them for files */
  madvise(p, HEADER_BYTES + bytes, MADV_WILLNEED);
  mapped_file_watch(p, HEADER_BYTES + bytes, path);
  return p + HEADER_BYTES;
}

/* The first step would read all of it anyway. */
static void *map_checked(int fd, const weights_key *k, hash16 check, const char *path, const char **why) {
  void *data = map_data(fd, k->bytes, path);
  if (!data) *why = "cannot be mapped";
  if (!data || hash_equal(hash_bytes(data, k->bytes), check)) return data;
  weights_cache_unmap(data, k->bytes);
  *why = "is damaged";
  return NULL;
}

static void *map_file(int fd, const weights_key *k, const char *path, const char **why) {
  struct stat s;
  header h;
  if (fstat(fd, &s) != 0 || pread(fd, &h, sizeof h, 0) != (ssize_t)sizeof h) {
    *why = "is cut short";
    return NULL;
  }
  *why = misfit(&h, k, (uint64_t)s.st_size);
  return *why ? NULL : map_checked(fd, k, h.data_check, path, why);
}

void *weights_cache_map(const char *dir, const weights_key *k, const logger *log) {
  char path[PATH_MAX];
  if (!make_path(path, dir, k)) return NULL;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return NULL; /* the folder: weights_cache_begin */
  const char *why = "cannot be read";
  void *data = fd < 0 ? NULL : map_file(fd, k, path, &why);
  if (fd >= 0) close(fd);
  if (data)
    log_line(log, LOG_INFO, "mapped packed weights from %s", path);
  else
    log_line(log, LOG_WARNING, "%s %s: packing the weights anew", path, why);
  return data;
}

void weights_cache_unmap(void *data, size_t bytes) {
  mapped_file_forget((uint8_t *)data - HEADER_BYTES);
  munmap((uint8_t *)data - HEADER_BYTES, HEADER_BYTES + bytes);
}

/* --- writing --- */

int weights_cache_begin(weights_file *f, const char *dir, const weights_key *k, err *e) {
  f->fd = -1;
  bool fits = make_path(f->path, dir, k);
  int n = fits ? snprintf(f->temporary, sizeof f->temporary, "%s.XXXXXX", f->path) : -1;
  if (n < 0 || n >= (int)sizeof f->temporary)
    return err_set(e, ERR_ARG, "the folder of packed weights has too long a name: give a shorter one");
  f->fd = mkstemp(f->temporary);
  if (f->fd >= 0) return ERR_OK;
  return err_set(e, ERR_IO,
                 "cannot write packed weights into '%s': %s; make it a folder that can be written, or leave "
                 "out --repack-cache",
                 dir, strerror(errno));
}

static bool write_at(int fd, size_t to, const void *data, size_t bytes) {
  const uint8_t *at = data;
  while (bytes > 0) {
    ssize_t n = pwrite(fd, at, bytes < WRITE_MAX ? bytes : WRITE_MAX, (off_t)to);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    to += (size_t)n;
    bytes -= (size_t)n;
  }
  return true;
}

static int cannot_write(const weights_file *f, size_t bytes, int why, err *e) {
  return err_set(e, ERR_IO, "cannot write %s: %s; make room for %zu MiB", f->path, strerror(why),
                 (bytes >> 20) + 1);
}

int weights_cache_write(weights_file *f, size_t at, const void *data, size_t bytes, err *e) {
  return write_at(f->fd, HEADER_BYTES + at, data, bytes) ? ERR_OK : cannot_write(f, at + bytes, errno, e);
}

/* Of what the file holds, with the zeros that were never written. */
static bool hash_data(const weights_file *f, const weights_key *k, hash16 *out) {
  uint8_t *data = map_data(f->fd, k->bytes, f->temporary);
  if (!data) return false;
  *out = hash_bytes(data, k->bytes);
  weights_cache_unmap(data, k->bytes);
  return true;
}

/* On the disk before it gets its name: a name never stands for half a file. */
static bool finish(const weights_file *f, const weights_key *k) {
  header h;
  hash16 check;
  if (ftruncate(f->fd, (off_t)(HEADER_BYTES + k->bytes)) != 0 || !hash_data(f, k, &check)) return false;
  fill_header(&h, k, check);
  return write_at(f->fd, 0, &h, sizeof h) && fsync(f->fd) == 0 && rename(f->temporary, f->path) == 0;
}

int weights_cache_end(weights_file *f, const weights_key *k, err *e) {
  bool finished = finish(f, k);
  int why = errno;
  if (!finished) {
    weights_cache_cancel(f);
    return cannot_write(f, k->bytes, why, e);
  }
  close(f->fd);
  f->fd = -1;
  return ERR_OK;
}

void weights_cache_cancel(weights_file *f) {
  if (f->fd < 0) return;
  close(f->fd);
  unlink(f->temporary);
  f->fd = -1;
}
