#include "orchestrator/ledger/owner_lock.h"

#include "common/base/host_id.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

#define PATH_MAX_BYTES 4128

/* Types of file systems that one kernel alone can use at a time (statfs(2); zfs and bcachefs by their own
 * sources). Every other one, such as NFS, 9p or FUSE, may be shared by hosts. */
static const uint32_t local_types[] = {
    0xEF53,     /* ext2, ext3, ext4 */
    0x58465342, /* xfs */
    0x9123683E, /* btrfs */
    0x01021994, /* tmpfs */
    0x858458F6, /* ramfs */
    0x794C7630, /* overlayfs, whose upper layer must be one of these */
    0xF2F52010, /* f2fs */
    0x2FC12FC1, /* zfs */
    0xCA451A4E, /* bcachefs */
};

static void path_of(char out[PATH_MAX_BYTES], const char *ledger) {
  snprintf(out, PATH_MAX_BYTES, "%s" OWNER_LOCK_BESIDE, ledger);
}

static struct flock byte_of(uint64_t owner) {
  return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)(owner >> 2), .l_len = 1};
}

void owner_lock_host(char out[OWNER_LOCK_HOST_MAX]) {
  hash_format(host_id(""), out);
}

/* 0 or an errno. */
static int take(int *fd, const char *path, struct flock what) {
  *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (*fd >= 0 && fcntl(*fd, F_OFD_SETLK, &what) == 0) return 0;
  int why = errno;
  owner_lock_release(*fd);
  *fd = -1;
  return why;
}

int owner_lock_take(int *fd, const char *ledger, uint64_t owner, err *e) {
  char path[PATH_MAX_BYTES];
  path_of(path, ledger);
  int why = take(fd, path, byte_of(owner));
  if (why == 0) return ERR_OK;
  return err_set(
      e, ERR_IO,
      "%.200s cannot be locked (%s), and so nobody could know which process serves a session: keep "
      "the ledger on a file system that has locks, with --ledger FILE, or give --ledger none",
      path, strerror(why));
}

int owner_lock_take_all(int *fd, const char *ledger, err *e) {
  char path[PATH_MAX_BYTES];
  path_of(path, ledger);
  int why = take(fd, path, (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET}); /* to its end */
  if (why == 0) return ERR_OK;
  if (why == EAGAIN || why == EACCES)
    return err_set(e, ERR_STATE,
                   "the ledger %.200s is in use: end the tandem programs that run (`tandem status' "
                   "shows them)",
                   ledger);
  return err_set(e, ERR_IO,
                 "%.200s cannot be locked (%s), and so nobody could know whether the ledger is in use", path,
                 strerror(why));
}

void owner_lock_release(int fd) {
  if (fd >= 0) close(fd);
}

static bool is_local(const char *ledger) {
  struct statfs s;
  if (statfs(ledger, &s) != 0) return false;
  for (size_t i = 0; i < sizeof local_types / sizeof *local_types; i++)
    if ((uint32_t)s.f_type == local_types[i]) return true;
  return false;
}

bool owner_lock_same_host(const char *one, const char *other) {
  return strcmp(one, other) == 0 && strspn(one, "0") != strlen(one);
}

owner_state owner_lock_judge(bool locked, bool same_host, bool local) {
  if (locked) return OWNER_ALIVE;
  return same_host || local ? OWNER_DEAD : OWNER_ELSEWHERE;
}

owner_state owner_lock_state(const char *ledger, uint64_t owner, const char *host) {
  char path[PATH_MAX_BYTES], here[OWNER_LOCK_HOST_MAX];
  path_of(path, ledger);
  owner_lock_host(here);
  struct flock byte = byte_of(owner);
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0 && errno != ENOENT) return OWNER_ELSEWHERE;
  bool known = fd < 0 || fcntl(fd, F_OFD_GETLK, &byte) == 0;
  bool locked = fd >= 0 && known && byte.l_type != F_UNLCK;
  owner_lock_release(fd);
  return known ? owner_lock_judge(locked, owner_lock_same_host(host, here), is_local(ledger))
               : OWNER_ELSEWHERE;
}

owner_state owner_lock_unlocked(const char *ledger, const char *host) {
  char here[OWNER_LOCK_HOST_MAX];
  owner_lock_host(here);
  return owner_lock_judge(false, owner_lock_same_host(host, here), is_local(ledger));
}
