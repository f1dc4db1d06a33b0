#include "orchestrator/socket_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool try_parent(char folder[SOCKET_FOLDER_MAX], const char *parent) {
  int n = snprintf(folder, SOCKET_FOLDER_MAX, "%s/tandem-XXXXXX", parent);
  if (parent[0] == '/' && n < SOCKET_FOLDER_MAX && mkdtemp(folder)) return true;
  folder[0] = 0;
  return false;
}

int socket_folder_make(char folder[SOCKET_FOLDER_MAX], err *e) {
  const char *wanted = getenv("TMPDIR");
  if ((wanted && try_parent(folder, wanted)) || try_parent(folder, "/tmp")) return ERR_OK;
  return err_set(e, ERR_IO,
                 "cannot make a directory for sockets in /tmp: %s; set TMPDIR to a short path that "
                 "can be written",
                 strerror(errno));
}

void socket_folder_remove(const char *folder) {
  if (!folder[0]) return;
  DIR *d = opendir(folder);
  for (struct dirent *entry; d && (entry = readdir(d));)
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
      unlinkat(dirfd(d), entry->d_name, 0);
  if (d) closedir(d);
  rmdir(folder);
}

void socket_folder_endpoint(char out[SOCKET_ENDPOINT_MAX], const char *folder, const char *name) {
  snprintf(out, SOCKET_ENDPOINT_MAX, "ipc://%s/%s", folder, name);
}
