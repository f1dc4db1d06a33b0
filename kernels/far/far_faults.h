/* far_faults.h - when a far device fails. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* What fails, counted from now: 1 is the next of its kind, 0 none. In TANDEM_FAR: "lose=120,fail=7". `slow`
 * is not counted. */
typedef struct far_faults {
  int32_t lose;         /* wait: the device is lost from then on */
  int32_t hang;         /* wait: it does not come back before the program is sent SIGCONT */
  int32_t fail;         /* forward: it is left out, and its wait says OPS_FAILED */
  int32_t refuse;       /* request for memory: take, act, kv_open, kv_stage */
  int32_t refuse_begin; /* begin */
  int32_t wrong;        /* norm: it gives other bits */
  int32_t slow;         /* milliseconds that it takes to fill a window */
} far_faults;

bool far_faults_parse(far_faults *out, const char *text);
/* Counts down; true when this one fails. */
bool far_faults_due(int32_t *fault);
/* Returns once the program is sent SIGCONT. */
void far_faults_hang(void);
