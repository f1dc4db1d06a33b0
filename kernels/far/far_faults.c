#include "kernels/far/far_faults.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HANG_LOOK_US 1000

bool far_faults_due(int32_t *fault) {
  return *fault > 0 && --*fault == 0;
}

static volatile sig_atomic_t hang_over;

static void end_hang(int number) {
  (void)number;
  hang_over = 1;
}

void far_faults_hang(void) {
  hang_over = 0;
  sigaction(SIGCONT, &(struct sigaction){.sa_handler = end_hang, .sa_flags = SA_RESTART}, NULL);
  while (!hang_over) usleep(HANG_LOOK_US);
}

static bool parse_fault(far_faults *f, const char *name, size_t length, int32_t at) {
  const struct {
    const char *name;
    int32_t *at;
  } known[] = {{"lose", &f->lose},
               {"hang", &f->hang},
               {"fail", &f->fail},
               {"refuse", &f->refuse},
               {"refuse_begin", &f->refuse_begin},
               {"wrong", &f->wrong},
               {"slow", &f->slow}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    if (strlen(known[i].name) != length || memcmp(known[i].name, name, length) != 0) continue;
    *known[i].at = at;
    return true;
  }
  return false;
}

bool far_faults_parse(far_faults *out, const char *text) {
  *out = (far_faults){0};
  for (const char *p = text; *p;) {
    size_t length = strcspn(p, "=");
    if (p[length] != '=') return false;
    char *end;
    errno = 0;
    long at = strtol(p + length + 1, &end, 10);
    if (end == p + length + 1 || errno || at < 1 || at > INT32_MAX || (*end && *end != ',')) return false;
    if (!parse_fault(out, p, length, (int32_t)at)) return false;
    p = *end ? end + 1 : end;
  }
  return true;
}
