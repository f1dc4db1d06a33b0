#include "wire/keys.h"

#include "common/base/plain_text.h"
#include "common/base/user_folder.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET   "secret"
#define HOW      "`tandem keygen' makes keys (docs/SEVERAL_MACHINES.md)"
#define BLANKS   " \t\r"
#define SHOWN    24 /* bytes of a bad word that an error shows */
#define PUBLIC   0644
#define PRIVATE  0600
#define OTHERS   (S_IRWXG | S_IRWXO)
#define OTHERS_W (S_IWGRP | S_IWOTH)

typedef struct allowed_key {
  key_bytes key;
  unsigned roles;
} allowed_key;

typedef struct file_version {
  struct timespec changed;
  ino_t inode;
  off_t size;
} file_version;

struct keys {
  key_bytes secret, public;
  char folder[PATH_MAX], allowed_path[PATH_MAX + sizeof KEYS_ALLOWED + 1];
  allowed_key list[KEYS_MAX];
  int32_t count;
  file_version read; /* the version of the file that `list` is from */
};

/* --- roles as text --- */

static const char *const role_names[] = {
    [WIRE_ROLE_ORCHESTRATOR] = "orchestrator", [WIRE_ROLE_TARGET] = "target", [WIRE_ROLE_DRAFT] = "draft"};

const char *keys_role_name(wire_role role) {
  return role_names[role];
}

static bool is_word(const char *word, size_t size, const char *name) {
  return strlen(name) == size && memcmp(word, name, size) == 0;
}

wire_role keys_role_of(const char *name, size_t size) {
  for (int role = WIRE_ROLE_ORCHESTRATOR; role <= WIRE_ROLE_DRAFT; role++)
    if (is_word(name, size, role_names[role])) return (wire_role)role;
  return (wire_role)0;
}

int keys_folder(const char *given, char out[PATH_MAX], err *e) {
  int rc = given ? snprintf(out, PATH_MAX, "%s", given) < PATH_MAX ? ERR_OK : ERR_LIMIT
                 : user_folder_path(USER_FOLDER_CONFIG, "keys", out);
  if (rc == ERR_ARG)
    return err_set(e, ERR_ARG, "no place for keys: set HOME or XDG_CONFIG_HOME, or give --keys DIR");
  return rc ? err_set(e, ERR_ARG, "the path of the keys' folder is too long") : ERR_OK;
}

/* --- files --- */

/* Whoever could change or read it could pass for us, or let somebody in. */
static int check_owner(const struct stat *s, const char *path, mode_t refused, err *e) {
  if (s->st_uid != geteuid() && s->st_uid != 0)
    return err_set(e, ERR_IO, "%s belongs to another user: make keys of your own; " HOW, path);
  if (s->st_mode & refused)
    return err_set(e, ERR_IO,
                   "%s has mode %04o, so other users of this machine can %s it: run chmod go-rwx on it, and "
                   "make new keys if one of them may have done so",
                   path, (unsigned)(s->st_mode & 07777), refused == OTHERS ? "read" : "change");
  return ERR_OK;
}

/* No file is an error that says how to make one. */
static int open_file(const char *path, mode_t refused, struct stat *s, err *e) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return err_set(e, ERR_IO, "no key: cannot read %s: %s; " HOW, path, strerror(errno));
  int rc = fstat(fd, s) == 0 && S_ISREG(s->st_mode)
               ? check_owner(s, path, refused, e)
               : err_set(e, ERR_IO, "%s is no file: remove it; " HOW, path);
  if (rc == ERR_OK && s->st_size > KEYS_FILE_MAX)
    rc = err_set(e, ERR_LIMIT, "%s has more than %d bytes: is it the right file?", path, KEYS_FILE_MAX);
  if (rc == ERR_OK) return fd;
  close(fd);
  return rc;
}

/* The file's text, with a NUL, in text[KEYS_FILE_MAX + 1]. */
static int read_file(const char *path, mode_t refused, struct stat *s, char *text, err *e) {
  int fd = open_file(path, refused, s, e);
  if (fd < 0) return fd;
  size_t size = 0;
  for (ssize_t n; size < KEYS_FILE_MAX && (n = read(fd, text + size, KEYS_FILE_MAX - size)) > 0;)
    size += (size_t)n;
  close(fd);
  size = plain_text_clean(text, size);
  text[size] = 0;
  if (strlen(text) == size) return plain_text_check(text, size, path, e);
  return err_set(e, ERR_FORMAT, "%s holds a zero byte: it is no file of keys", path);
}

typedef struct line {
  const char *path;
  int number;
  const char *word, *key;
  size_t word_size, key_size;
} line;

static size_t skip_word(const char **at, const char **word) {
  *word = *at += strspn(*at, BLANKS);
  size_t size = strcspn(*at, BLANKS "\n");
  *at += size;
  return size;
}

/* Takes the next line that says something. False: there is none. */
static bool next_line(const char **at, line *l) {
  while (**at) {
    const char *rest = *at;
    l->number++;
    *at += strcspn(*at, "\n");
    if (**at) ++*at;
    l->word_size = skip_word(&rest, &l->word);
    if (l->word_size == 0 || l->word[0] == '#') continue;
    l->key_size = skip_word(&rest, &l->key);
    return true;
  }
  return false;
}

static int bad_line(const line *l, const char *why, const char *shown, size_t size, err *e) {
  return err_set(e, ERR_FORMAT, "%s, line %d: \"%.*s\" %s", l->path, l->number,
                 (int)(size < SHOWN ? size : SHOWN), shown, why);
}

static int parse_key(const line *l, key_bytes *out, err *e) {
  if (key_parse(l->key, l->key_size, out)) return ERR_OK;
  return bad_line(l, "is no key: one has 64 hexadecimal digits", l->key, l->key_size, e);
}

static int parse_allowed(const line *l, allowed_key *out, err *e) {
  wire_role role = keys_role_of(l->word, l->word_size);
  if (is_word(l->word, l->word_size, SECRET))
    return err_set(e, ERR_FORMAT,
                   "%s, line %d is a secret key, which nobody else may see: copy lines of `%s' alone, and "
                   "make that key anew",
                   l->path, l->number, KEYS_ALLOWED);
  if (!role)
    return bad_line(l, "is no role: a line is orchestrator, target or draft, then a key, then a name",
                    l->word, l->word_size, e);
  out->roles = KEYS_ROLE(role);
  return parse_key(l, &out->key, e);
}

/* --- the allow-list --- */

static allowed_key *find(keys *k, const key_bytes *key) {
  for (int32_t i = 0; i < k->count; i++)
    if (memcmp(&k->list[i].key, key, sizeof *key) == 0) return &k->list[i];
  return NULL;
}

static int add_allowed(keys *k, const allowed_key *a, err *e) {
  allowed_key *known = find(k, &a->key);
  if (known) {
    known->roles |= a->roles;
    return ERR_OK;
  }
  if (k->count == KEYS_MAX)
    return err_set(e, ERR_LIMIT, "%s has more than %d keys: remove some", k->allowed_path, KEYS_MAX);
  k->list[k->count++] = *a;
  return ERR_OK;
}

static file_version version_of(const struct stat *s) {
  return (file_version){s->st_mtim, s->st_ino, s->st_size};
}

static int read_allowed(keys *k, err *e) {
  struct stat s;
  char *text = malloc(KEYS_FILE_MAX + 1);
  if (!text) return err_set(e, ERR_NOMEM, "out of memory for %s", k->allowed_path);
  k->count = 0;
  int rc = read_file(k->allowed_path, OTHERS_W, &s, text, e);
  line l = {.path = k->allowed_path};
  for (const char *at = text; rc == ERR_OK && next_line(&at, &l);) {
    allowed_key a;
    rc = parse_allowed(&l, &a, e);
    if (rc == ERR_OK) rc = add_allowed(k, &a, e);
  }
  free(text);
  k->read = rc == ERR_OK ? version_of(&s) : (file_version){0};
  if (rc != ERR_OK) k->count = 0;
  return rc;
}

static bool has_changed(const keys *k) {
  struct stat s;
  if (stat(k->allowed_path, &s) != 0) return true;
  file_version now = version_of(&s);
  return now.inode != k->read.inode || now.size != k->read.size ||
         now.changed.tv_sec != k->read.changed.tv_sec || now.changed.tv_nsec != k->read.changed.tv_nsec;
}

unsigned keys_roles(keys *k, const key_bytes *public, err *e) {
  if (has_changed(k) && read_allowed(k, e) != ERR_OK) return 0;
  const allowed_key *a = find(k, public);
  return a ? a->roles : 0;
}

int keys_orchestrator(keys *k, key_bytes *out, err *e) {
  int32_t count = 0;
  if (has_changed(k) && read_allowed(k, e) != ERR_OK) return e ? e->code : ERR_IO;
  for (int32_t i = 0; i < k->count; i++) {
    if (!(k->list[i].roles & KEYS_ROLE(WIRE_ROLE_ORCHESTRATOR))) continue;
    *out = k->list[i].key;
    count++;
  }
  if (count == 1) return ERR_OK;
  if (count == 0)
    return err_set(e, ERR_ARG, "%s has no line of an orchestrator: copy it from the orchestrator's own `%s'",
                   k->allowed_path, KEYS_ALLOWED);
  return err_set(e, ERR_ARG,
                 "%s has %d orchestrators: add the key of the one to call, --orchestrator "
                 "tcp://HOST:PORT#KEY",
                 k->allowed_path, count);
}

/* --- our own key --- */

static int read_secret(keys *k, wire_role role, err *e) {
  char path[PATH_MAX + 32], text[KEYS_FILE_MAX + 1];
  struct stat s;
  snprintf(path, sizeof path, "%s/%s.key", k->folder, keys_role_name(role));
  int rc = read_file(path, OTHERS, &s, text, e);
  const char *at = text;
  line l = {.path = path};
  if (rc == ERR_OK && (!next_line(&at, &l) || !is_word(l.word, l.word_size, SECRET)))
    rc = err_set(e, ERR_FORMAT, "%s has no line \"secret KEY\": remove it; " HOW, path);
  if (rc == ERR_OK && !key_parse(l.key, l.key_size, &k->secret)) /* what is wrong with it is not shown */
    rc = err_set(e, ERR_FORMAT, "%s, line %d: the key has not 64 hexadecimal digits: remove the file; " HOW,
                 path, l.number);
  explicit_bzero(text, sizeof text);
  if (rc == ERR_OK) key_public_of(&k->secret, &k->public);
  return rc;
}

static int check_folder(const char *folder, err *e) {
  struct stat s;
  if (stat(folder, &s) != 0) return err_set(e, ERR_IO, "no keys: %s: %s; " HOW, folder, strerror(errno));
  return check_owner(&s, folder, OTHERS_W, e);
}

int keys_open(keys **out, const char *folder, wire_role role, err *e) {
  *out = NULL;
  keys *k = calloc(1, sizeof *k);
  if (!k) return err_set(e, ERR_NOMEM, "out of memory for keys");
  snprintf(k->folder, sizeof k->folder, "%s", folder);
  snprintf(k->allowed_path, sizeof k->allowed_path, "%s/" KEYS_ALLOWED, k->folder);
  int rc = check_folder(folder, e);
  if (rc == ERR_OK) rc = read_secret(k, role, e);
  if (rc == ERR_OK) rc = read_allowed(k, e);
  if (rc == ERR_OK)
    *out = k;
  else
    keys_close(k);
  return rc;
}

void keys_close(keys *k) {
  if (!k) return;
  explicit_bzero(k, sizeof *k);
  free(k);
}

const key_bytes *keys_secret(const keys *k) {
  return &k->secret;
}

const key_bytes *keys_public(const keys *k) {
  return &k->public;
}

const char *keys_allowed_path(const keys *k) {
  return k->allowed_path;
}

/* --- new keys --- */

/* Makes the folder and those that it lies in. */
static int make_folder(const char *folder, err *e) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s", folder);
  for (char *at = path + 1;; at++) {
    if (*at && *at != '/') continue;
    char end = *at;
    *at = 0;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
      return err_set(e, ERR_IO, "cannot make the folder %s: %s", path, strerror(errno));
    *at = end;
    if (!end) return check_folder(folder, e);
  }
}

/* One line more, whole and on the disk, or none. */
static int write_line(const char *path, int flags, mode_t mode, const char *text, err *e) {
  int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, mode);
  if (fd < 0 && errno == EEXIST)
    return err_set(e, ERR_STATE, "%s is there already and stays: move it away first if it is to be replaced",
                   path);
  struct stat before = {0};
  size_t size = strlen(text);
  bool open = fd >= 0 && fstat(fd, &before) == 0;
  bool written = open && write(fd, text, size) == (ssize_t)size && fsync(fd) == 0;
  int reason = errno;
  if (open && !written && ftruncate(fd, before.st_size) != 0) reason = errno;
  if (fd >= 0) close(fd);
  if (fd >= 0 && !written && flags & O_EXCL) unlink(path);
  return written ? ERR_OK : err_set(e, ERR_IO, "cannot write %s: %s", path, strerror(reason));
}

static void sync_folder(const char *folder) {
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

/* What a host calls itself may hold anything. */
static void copy_name(const char *name, char out[KEYS_NAME_MAX + 1]) {
  size_t size = 0;
  for (; name[size] && size < KEYS_NAME_MAX; size++)
    out[size] = name[size] > ' ' && name[size] < 127 ? name[size] : '_';
  out[size] = 0;
}

static int allow(const char *folder, wire_role role, const char *name, const key_bytes *public, err *e) {
  char path[PATH_MAX + 32], text[KEY_HEX + KEYS_NAME_MAX + 32], shown[KEYS_NAME_MAX + 1];
  copy_name(name, shown);
  snprintf(path, sizeof path, "%s/" KEYS_ALLOWED, folder);
  snprintf(text, sizeof text, "%s %s %s\n", keys_role_name(role), key_hex_of(public).text, shown);
  return write_line(path, O_APPEND, PUBLIC, text, e);
}

/* A key that is there already gets its line if it has none: somebody was stopped in between. */
static void allow_again(const char *folder, wire_role role, const char *name) {
  keys *k = calloc(1, sizeof *k);
  if (!k) return;
  snprintf(k->folder, sizeof k->folder, "%s", folder);
  snprintf(k->allowed_path, sizeof k->allowed_path, "%s/" KEYS_ALLOWED, folder);
  if (read_secret(k, role, NULL) == ERR_OK && !(keys_roles(k, &k->public, NULL) & KEYS_ROLE(role)))
    allow(folder, role, name, &k->public, NULL);
  keys_close(k);
}

int keys_create(const char *folder, wire_role role, const char *name, key_bytes *public, err *e) {
  char path[PATH_MAX + 32], text[KEY_HEX + 32];
  key_bytes secret;
  int rc = make_folder(folder, e);
  if (rc == ERR_OK) rc = key_generate(&secret, public, e);
  if (rc != ERR_OK) return rc;
  snprintf(path, sizeof path, "%s/%s.key", folder, keys_role_name(role));
  snprintf(text, sizeof text, SECRET " %s\n", key_hex_of(&secret).text);
  explicit_bzero(&secret, sizeof secret);
  rc = write_line(path, O_EXCL, PRIVATE, text, e);
  explicit_bzero(text, sizeof text);
  if (rc == ERR_STATE) allow_again(folder, role, name);
  if (rc != ERR_OK) return rc;
  rc = allow(folder, role, name, public, e);
  if (rc != ERR_OK) unlink(path);
  sync_folder(folder);
  return rc;
}
