#include "orchestrator/ledger/process_identity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STAT_MAX    1024
#define START_FIELD 22
#define BOOT_MAX    64

static bool read_text(const char *path, char *out, size_t size) {
  FILE *f = fopen(path, "re");
  size_t n = f ? fread(out, 1, size - 1, f) : 0;
  if (f) fclose(f);
  out[n] = 0;
  return n > 0;
}

/* 0: there is no such process, or it is dead and only not waited for. */
static int64_t start_of(int64_t pid) {
  char path[64], text[STAT_MAX];
  snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
  char *at = read_text(path, text, sizeof text) ? strrchr(text, ')') : NULL; /* the name may hold anything */
  if (!at || strlen(at) < 3 || strchr("ZX", at[2])) return 0;
  for (int field = 2; at && field < START_FIELD; field++) at = strchr(at + 1, ' ');
  return at ? strtoll(at, NULL, 10) : 0;
}

static void name_machine(char out[PROCESS_IDENTITY_MACHINE_MAX]) {
  char boot[BOOT_MAX] = "", space[BOOT_MAX] = "";
  read_text("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
  boot[strcspn(boot, "\n")] = 0;
  ssize_t n = readlink("/proc/self/ns/pid", space, sizeof space - 1);
  space[n > 0 ? n : 0] = 0;
  snprintf(out, PROCESS_IDENTITY_MACHINE_MAX, "%s %s", boot, space);
}

void process_identity_self(process_identity *o) {
  *o = (process_identity){.pid = getpid()};
  o->start = start_of(o->pid);
  name_machine(o->machine);
}

bool process_identity_alive(const process_identity *o, int64_t heartbeat_us, int64_t now_us) {
  char here[PROCESS_IDENTITY_MACHINE_MAX];
  name_machine(here);
  if (strcmp(here, o->machine) != 0) return now_us - heartbeat_us < PROCESS_IDENTITY_SILENT_US;
  return o->start != 0 && start_of(o->pid) == o->start;
}
