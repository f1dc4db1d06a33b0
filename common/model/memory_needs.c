#include "common/model/memory_needs.h"

#include "common/base/program.h"
#include "kernels/ops.h"
#include <math.h>
#include <stdio.h>

#define TEXT_ROOM 120

static size_t needed(const memory_needs *n) {
  return n->weights + n->activations + n->rows + n->stage;
}

static void tell_cache(const memory_needs *n, char out[TEXT_ROOM]) {
  if (n->blocks)
    snprintf(out, TEXT_ROOM, "a cache of %d blocks of %d tokens", n->blocks, OPS_TILE);
  else
    snprintf(out, TEXT_ROOM, "a cache of %d session%s of %d tokens", n->sessions, n->sessions == 1 ? "" : "s",
             n->context);
}

/* The most sessions, tokens of each, or blocks that there is room for. */
static void tell_remedy(const memory_needs *n, size_t left, const char *device, char out[TEXT_ROOM]) {
  size_t fixed = needed(n) - n->rows, room = left > fixed ? left - fixed : 0;
  double part = n->rows ? fmin((double)room / (double)n->rows, 1) : 0;
  int32_t blocks = (int32_t)(n->blocks * part), sessions = (int32_t)(n->sessions * part);
  int32_t context = (int32_t)(n->context * part) / OPS_TILE * OPS_TILE;
  if (n->blocks && blocks > 0 && blocks < n->blocks)
    snprintf(out, TEXT_ROOM, "give at most --kv-blocks %d", blocks);
  else if (!n->blocks && sessions > 0 && sessions < n->sessions)
    snprintf(out, TEXT_ROOM, "give at most --sessions %d or --ctx %d", sessions, context);
  else if (!n->blocks && context > 0 && context < n->context)
    snprintf(out, TEXT_ROOM, "give at most --ctx %d", context);
  else
    snprintf(out, TEXT_ROOM, "%s%s", device ? "end what else uses it, or use another --device" : "allow more",
             n->weights ? " or a smaller model" : "");
}

/* "the model needs 5 GiB (...)" */
static void tell_needs(const memory_needs *n, char out[3 * TEXT_ROOM]) {
  char cache[TEXT_ROOM], with[TEXT_ROOM + 30] = "";
  program_size_text all, weights, activations, rows;
  tell_cache(n, cache);
  program_print_size(&all, needed(n));
  program_print_size(&weights, n->weights);
  program_print_size(&activations, n->activations);
  program_print_size(&rows, n->rows + n->stage);
  if (n->rows) snprintf(with, sizeof with, ", %s for %s", rows.text, cache);
  if (n->weights)
    snprintf(out, 3 * TEXT_ROOM, "the model needs %s (%s for weights, %s for activations%s)", all.text,
             weights.text, activations.text, with);
  else
    snprintf(out, 3 * TEXT_ROOM, "%s needs %s", cache, all.text);
}

int memory_needs_refuse(const memory_needs *n, size_t left, const char *device, err *e) {
  char needs[3 * TEXT_ROOM], remedy[TEXT_ROOM];
  program_size_text there;
  tell_needs(n, needs);
  tell_remedy(n, left, device, remedy);
  program_print_size(&there, left);
  if (!device) return err_set(e, ERR_NOMEM, "%s, and --kv-memory allows %s: %s", needs, there.text, remedy);
  return err_set(e, ERR_NOMEM, "%s, and %s has %s left: %s", needs, device, there.text, remedy);
}

int memory_needs_check(const memory_needs *n, size_t left, const char *device, err *e) {
  return needed(n) <= left ? ERR_OK : memory_needs_refuse(n, left, device, e);
}
