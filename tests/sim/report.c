#include "tests/sim/report.h"

#include "tests/sim/faults.h"
#include "tests/sim/limits.h"
#include <stdio.h>
#include <time.h>

static uint64_t max_u64(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

void report_add(totals *sum, const totals *t) {
  uint64_t *a = (uint64_t *)sum, stall = sum->longest_stall_us, wait = sum->longest_wait_us;
  const uint64_t *b = (const uint64_t *)t;
  for (size_t i = 0; i < sizeof *sum / sizeof *a; i++) a[i] += b[i];
  sum->longest_stall_us = max_u64(stall, t->longest_stall_us);
  sum->longest_wait_us = max_u64(wait, t->longest_wait_us);
}

typedef struct figure {
  const char *name;
  uint64_t value;
} figure;

/* Those that say whether the world was hard enough. */
static bool print_required(const totals *t, uint64_t floor) {
  const figure list[] = {{"frames lost", t->net.lost},
                         {"frames repeated", t->net.repeated},
                         {"frames reordered", t->net.reordered},
                         {"DESYNC", t->net.desync},
                         {"PART", t->net.parts},
                         {"RESEND", t->net.resend},
                         {"TREE_RESET", t->net.tree_reset},
                         {"accepted", t->accepted},
                         {"marked", t->marked},
                         {"rests compared", t->rests_compared},
                         {"blocks shared", t->shared},
                         {"blocks evicted", t->evicted},
                         {"said by a mad draft", t->said_by_draft},
                         {"said by a mad target", t->said_by_target},
                         {"said by a stranger", t->said_by_stranger},
                         {"rests of several drafts", t->rests_of_several},
                         {"features read", t->features},
                         {"features kept", t->features_kept},
                         {"rows again", t->repeated},
                         {"sessions resumed", t->resumed},
                         {"ended: taken over", t->taken_over},
                         {"transactions", t->transactions},
                         {"allocations refused", t->refused}};
  bool ok = true;
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    bool enough = list[i].value > floor;
    printf("  %-24s %12llu%s\n", list[i].name, (unsigned long long)list[i].value, enough ? "" : "   TOO FEW");
    ok &= enough;
  }
  return ok;
}

static void print_others(const totals *t) {
  const figure list[] = {{"live nodes at rest", t->live_nodes},
                         {"streams forged", t->net.forged},
                         {"dropped by full queues", t->net.dropped_full},
                         {"dropped by cut links", t->net.dropped_cut},
                         {"repairs", t->repairs},
                         {"cancelled", t->cancelled},
                         {"stopped", t->stopped},
                         {"lockstep", t->lockstep},
                         {"epochs", t->epochs},
                         {"features forged", t->features_wrong},
                         {"transactions lost", t->transactions_lost},
                         {"ended on the disk", t->ended_on_disk},
                         {"begun again", t->begun_again},
                         {"credit used up", t->credit_used_up},
                         {"ended: device", t->device_errors},
                         {"ended: disk full", t->io_errors},
                         {"ended: engine", t->engine_errors},
                         {"starts without memory", t->starts_refused}};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++)
    printf("  %-24s %12llu\n", list[i].name, (unsigned long long)list[i].value);
}

static uint64_t print_faults(const totals *t, uint64_t floor, bool *ok) {
  uint64_t sum = 0;
  for (int i = 0; i < FAULT_KINDS; i++) {
    bool enough = t->faults[i] > floor / 20;
    printf("  %-24s %12llu%s\n", faults_names[i], (unsigned long long)t->faults[i],
           enough ? "" : "   TOO FEW");
    *ok &= enough;
    sum += t->faults[i];
  }
  return sum;
}

static void print_limits(const totals *t, uint64_t floor, bool *ok) {
  for (int i = 0; i < LIMIT_KINDS; i++) {
    bool enough = floor == 0 || t->limits[i] > floor / 200; /* some are reached once in 1,000 seeds */
    printf("  %-26s %10llu%s\n", limits_names[i], (unsigned long long)t->limits[i],
           enough ? "" : "   TOO FEW");
    *ok &= enough;
  }
}

bool report_print(const totals *t, uint64_t floor, bool violated) {
  bool ok = print_required(t, floor);
  print_others(t);
  print_limits(t, floor, &ok);
  uint64_t faults = print_faults(t, floor, &ok);
  printf("sim: %llu seeds, %llu events, %llu faults (%.1f a seed), %llu tokens, longest stall %.1f s (%.1f s "
         "when faults were over), %.0f events a second and core, violations: %s\n",
         (unsigned long long)t->seeds, (unsigned long long)t->net.events, (unsigned long long)faults,
         (double)faults / (double)t->seeds, (unsigned long long)t->tokens, (double)t->longest_stall_us / 1e6,
         (double)t->longest_wait_us / 1e6, (double)t->net.events * CLOCKS_PER_SEC / (double)(clock() + 1),
         violated ? "see above" : "0");
  return ok;
}
