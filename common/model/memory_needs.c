#include "common/model/memory_needs.h"

#include "common/base/mem.h"
#include "common/base/program.h"
#include "kernels/ops.h"
#include <math.h>
#include <stdio.h>

#define TEXT_ROOM 120
#define THE_HOST  "the host"

static size_t needed(const memory_needs *n) {
  return n->weights + n->activations + n->rows + n->stage;
}

/* What the device has to have room for; NULL: what --kv-memory bounds. */
static memory_needs of_device(const memory_needs *n, const char *device) {
  memory_needs own = *n;
  if (n->in_host && device) own.rows = 0;
  return own;
}

static memory_needs of_host(const memory_needs *n) {
  return (memory_needs){
      .rows = n->rows, .sessions = n->sessions, .context = n->context, .blocks = n->blocks, .in_host = true};
}

static void tell_cache(const memory_needs *n, char out[TEXT_ROOM]) {
  if (!n->rows)
    snprintf(out, TEXT_ROOM, "the staging of trees");
  else if (n->blocks)
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
  else if (n->in_host && n->rows && device)
    snprintf(out, TEXT_ROOM, "end what else uses it, or leave out --kv-in host");
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
  if (n->rows + n->stage) snprintf(with, sizeof with, ", %s for %s", rows.text, cache);
  if (n->weights)
    snprintf(out, 3 * TEXT_ROOM, "the model needs %s (%s for weights, %s for activations%s)", all.text,
             weights.text, activations.text, with);
  else
    snprintf(out, 3 * TEXT_ROOM, "%s needs %s", cache, all.text);
}

static int refuse(const memory_needs *n, size_t left, const char *device, err *e) {
  char needs[3 * TEXT_ROOM], remedy[TEXT_ROOM];
  program_size_text there;
  tell_needs(n, needs);
  tell_remedy(n, left, device, remedy);
  program_print_size(&there, left);
  if (!device) return err_set(e, ERR_NOMEM, "%s, and --kv-memory allows %s: %s", needs, there.text, remedy);
  return err_set(e, ERR_NOMEM, "%s, and %s has %s left: %s", needs, device, there.text, remedy);
}

int memory_needs_refuse(const memory_needs *n, size_t left, const char *device, err *e) {
  const memory_needs own = of_device(n, device);
  return refuse(&own, left, device, e);
}

int memory_needs_refuse_in_host(const memory_needs *n, err *e) {
  const memory_needs rows = of_host(n);
  char cache[TEXT_ROOM];
  program_size_text size;
  tell_cache(&rows, cache);
  program_print_size(&size, rows.rows);
  return err_set(e, ERR_NOMEM,
                 "%s needs %s of the host's memory, page-locked, and that, or what it takes beside it, was "
                 "not given: lower --sessions or --ctx, or leave out --kv-in host",
                 cache, size.text);
}

int memory_needs_check(const memory_needs *n, size_t left, const char *device, err *e) {
  const memory_needs own = of_device(n, device), rows = of_host(n);
  const size_t host = n->in_host && device ? mem_left_locked("") : SIZE_MAX;
  if (rows.rows > host) return refuse(&rows, host, THE_HOST, e);
  return needed(&own) <= left ? ERR_OK : refuse(&own, left, device, e);
}
