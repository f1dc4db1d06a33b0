/* control_group.h - the control groups that this process is in, and those above them: each may limit it.
 *
 * Code to be included: cpus.c and mem.c each ask for files of their own. A container sees its group at the
 * mount's root; elsewhere (systemd's slices, a container that shares the host's namespace) the group lies
 * below it, and /proc/self/cgroup and /proc/self/mountinfo tell where (cgroups(7)). Both versions may be
 * there at once. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define CONTROL_GROUP_LINE 4608

/* Is `word` one of those in "a,b,c"? */
static inline bool control_group_lists(const char *list, const char *word) {
  size_t size = strlen(word);
  for (; list; list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL)
    if (strncmp(list, word, size) == 0 && (list[size] == 0 || list[size] == ',')) return true;
  return false;
}

/* The group's path by /proc/self/cgroup, "" where that tells nothing. controller: of version 1, or NULL:
 * version 2. */
static inline void control_group_path(const char *root, const char *controller, char out[PATH_MAX]) {
  char line[CONTROL_GROUP_LINE], path[PATH_MAX];
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  FILE *f = fopen(path, "re");
  out[0] = 0;
  while (f && !out[0] && fgets(line, sizeof line, f)) {
    char *list = strchr(line, ':'), *group = list ? strchr(list + 1, ':') : NULL;
    if (!group) continue;
    *group++ = 0, list++;
    group[strcspn(group, "\n")] = 0;
    if (controller ? control_group_lists(list, controller) : !*list) snprintf(out, PATH_MAX, "%s", group);
  }
  if (f) fclose(f);
}

/* Where the groups are mounted, and which group that is ("/": all of them). Without /proc/self/mountinfo it
 * is taken to be the usual place. */
static inline void control_group_mount(const char *root, const char *controller, char at[PATH_MAX],
                                       char top[PATH_MAX]) {
  char line[CONTROL_GROUP_LINE], path[PATH_MAX], point[PATH_MAX], of[PATH_MAX], type[32], options[PATH_MAX];
  snprintf(path, sizeof path, "%s/proc/self/mountinfo", root);
  snprintf(at, PATH_MAX, "/sys/fs/cgroup%s%s", controller ? "/" : "", controller ? controller : "");
  snprintf(top, PATH_MAX, "/");
  FILE *f = fopen(path, "re");
  while (f && fgets(line, sizeof line, f)) {
    const char *rest = strstr(line, " - ");
    if (!rest || sscanf(line, "%*s %*s %*s %4095s %4095s", of, point) != 2 ||
        sscanf(rest, " - %31s %*s %4095s", type, options) != 2)
      continue;
    if (controller ? strcmp(type, "cgroup") != 0 || !control_group_lists(options, controller)
                   : strcmp(type, "cgroup2") != 0)
      continue;
    snprintf(at, PATH_MAX, "%s", point);
    snprintf(top, PATH_MAX, "%s", of);
    break;
  }
  if (f) fclose(f);
}

/* Calls `look` for the folder of this process's group and for each one above it that can be seen. root: where
 * the system's files begin, "" but in tests. */
static inline void control_group_each(const char *root, const char *controller,
                                      void (*look)(void *context, const char *folder), void *context) {
  char group[PATH_MAX], at[PATH_MAX], top[PATH_MAX], folder[3 * PATH_MAX];
  control_group_path(root, controller, group);
  control_group_mount(root, controller, at, top);
  size_t above = strcmp(top, "/") == 0 ? 0 : strlen(top);
  const char *below =
      group; /* outside of what is mounted, or above this namespace's root: only the mount is seen */
  if (strncmp(group, top, above) != 0 || strncmp(group, "/..", 3) == 0)
    below = "";
  else
    below += above;
  size_t least = (size_t)snprintf(folder, sizeof folder, "%s%s", root, at);
  snprintf(folder + least, sizeof folder - least, "%s%s", *below && *below != '/' ? "/" : "", below);
  for (;;) {
    size_t size = strlen(folder);
    if (size > least && folder[size - 1] == '/') folder[--size] = 0;
    look(context, folder);
    if (size <= least) return;
    while (size > least && folder[--size] != '/') {
    }
    folder[size] = 0;
  }
}
