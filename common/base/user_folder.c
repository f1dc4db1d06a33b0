#include "common/base/user_folder.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct {
  const char *variable, *in_home;
} BASES[] = {[USER_FOLDER_STATE] = {"XDG_STATE_HOME", "/.local/state"},
             [USER_FOLDER_CONFIG] = {"XDG_CONFIG_HOME", "/.config"},
             [USER_FOLDER_CACHE] = {"XDG_CACHE_HOME", "/.cache"}};

int user_folder_path(user_folder f, const char *name, char *out) {
  const char *given = getenv(BASES[f].variable), *home = getenv("HOME");
  bool xdg = given && given[0] == '/'; /* the specification ignores other paths */
  if (!xdg && !(home && home[0] == '/')) return ERR_ARG;
  int n = snprintf(out, PATH_MAX, "%s%s/tandem/%s", xdg ? given : home, xdg ? "" : BASES[f].in_home, name);
  return n < PATH_MAX ? ERR_OK : ERR_LIMIT;
}

void user_folder_make_parents(const char *path) {
  char folder[PATH_MAX];
  snprintf(folder, sizeof folder, "%s", path);
  for (char *at = strchr(folder + 1, '/'); at; at = strchr(at + 1, '/')) {
    *at = 0;
    mkdir(folder, 0700);
    *at = '/';
  }
}
