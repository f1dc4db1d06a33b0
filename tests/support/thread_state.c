#include "tests/support/thread_state.h"

bool thread_sleeps(int thread) {
  char path[64], text[256] = "";
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
  FILE *f = fopen(path, "r");
  if (!f) return false;
  bool read = fgets(text, sizeof text, f);
  fclose(f);
  const char *end = read ? strrchr(text, ')') : NULL; /* of its name */
  return end && strncmp(end, ") S", 3) == 0;
}

bool other_threads_sleep(void) {
  DIR *d = opendir("/proc/self/task");
  bool sleep = d != NULL;
  for (const struct dirent *e; d && (e = readdir(d));)
    if (e->d_name[0] != '.' && atoi(e->d_name) != gettid()) sleep &= thread_sleeps(atoi(e->d_name));
  if (d) closedir(d);
  return sleep;
}
