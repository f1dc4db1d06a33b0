#include "common/file/file_hash.h"

#include "common/base/clock.h"
#include "common/base/user_folder.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 256, HASH_DIGITS = 32 };
#define PIECE_BYTES ((size_t)4 << 20) /* between two looks at *stop */

/* ---- what is remembered: one line ---- */

static int facts_of(const mapped_stamp *s, char out[LINE_BYTES]) {
  return snprintf(out, LINE_BYTES,
                  "tandem-file-hash-1 %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 " ",
                  s->device, s->number, s->size, s->modified_ns, s->changed_ns);
}

/* The facts, the hash of the file, and a hash of both. */
static int line_of(const mapped_stamp *s, hash16 h, char out[LINE_BYTES]) {
  int n = facts_of(s, out);
  hash_format(h, out + n);
  n += HASH_DIGITS;
  hash16 check = hash_bytes(out, (size_t)n);
  out[n++] = ' ';
  hash_format(check, out + n);
  n += HASH_DIGITS;
  out[n++] = '\n';
  return n;
}

static bool path_of(const mapped_stamp *s, char path[PATH_MAX]) {
  char name[64];
  snprintf(name, sizeof name, "hashes/%" PRIx64 "-%" PRIx64, s->device, s->number);
  return s->size > 0 && user_folder_path(USER_FOLDER_CACHE, name, path) == ERR_OK;
}

bool file_hash_recall(const mapped_file *m, hash16 *out) {
  char path[PATH_MAX], said[LINE_BYTES + 1], facts[LINE_BYTES], line[LINE_BYTES];
  FILE *f = path_of(&m->stamp, path) ? fopen(path, "re") : NULL;
  if (!f) return false;
  size_t size = fread(said, 1, sizeof said - 1, f);
  said[size] = 0;
  fclose(f);
  size_t at = (size_t)facts_of(&m->stamp, facts);
  hash16 h;
  if (size < at + HASH_DIGITS || !hash_read_hex(said + at, sizeof h.bytes, h.bytes)) return false;
  if ((size_t)line_of(&m->stamp, h, line) != size || memcmp(line, said, size) != 0) return false;
  *out = h;
  return true;
}

static bool write_line(int fd, const char *line, size_t size) {
  bool written = write(fd, line, size) == (ssize_t)size;
  return (close(fd) == 0) & written;
}

/* Whole or not at all: another program may remember the same file. Nothing is lost if this fails. */
static void remember(const mapped_stamp *s, hash16 h) {
  char path[PATH_MAX], temporary[PATH_MAX + 8], line[LINE_BYTES];
  if (!path_of(s, path)) return;
  user_folder_make_parents(path);
  snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
  int fd = mkstemp(temporary);
  if (fd < 0) return;
  if (!write_line(fd, line, (size_t)line_of(s, h, line)) || rename(temporary, path) != 0) unlink(temporary);
}

/* ---- reading ---- */

static bool is_set(const atomic_bool *stop) {
  return stop && atomic_load(stop);
}

static bool hash_pieces(const mapped_file *m, const atomic_bool *stop, hash16 *out) {
  hash_stream *s = hash_stream_alloc();
  if (!s) {
    *out = hash_bytes(m->data, m->size);
    return true;
  }
  for (size_t at = 0; at < m->size && !is_set(stop); at += PIECE_BYTES)
    hash_stream_add(s, (const char *)m->data + at, m->size - at < PIECE_BYTES ? m->size - at : PIECE_BYTES);
  hash16 h = hash_stream_end(s);
  if (is_set(stop)) return false;
  *out = h;
  return true;
}

/* Who changes the file while it is read changes its stamp with it, which then stands for nothing. */
bool file_hash_read(const mapped_file *m, const atomic_bool *stop, hash16 *out) {
  const mapped_stamp *s = &m->stamp;
  int64_t last = s->modified_ns > s->changed_ns ? s->modified_ns : s->changed_ns;
  bool settled = clock_wall_us() * 1000 - last >= FILE_HASH_SETTLED_NS;
  if (!hash_pieces(m, stop, out)) return false;
  if (settled) remember(s, *out);
  return true;
}
