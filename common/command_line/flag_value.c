#include "common/command_line/flag_value.h"

#include "common/base/program.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- words of a choice ---- */

bool flag_word(const flag_row *row, int n, char out[FLAG_WORD_MAX]) {
  const char *at = row->argument;
  while (at && n-- > 0) at = (at = strchr(at, '|')) ? at + 1 : NULL;
  if (!at) return false;
  snprintf(out, FLAG_WORD_MAX, "%.*s", (int)strcspn(at, "|"), at);
  return true;
}

int flag_word_number(const flag_row *row, const char *word) {
  char one[FLAG_WORD_MAX];
  for (int i = 0; flag_word(row, i, one); i++)
    if (strcmp(one, word) == 0) return i;
  return -1;
}

/* ---- read ---- */

static int take_choice(const flag_row *row, const char *flag, const char *text, int32_t *out, err *e) {
  char words[16][FLAG_WORD_MAX];
  const char *list[16];
  int count = 0;
  while (count < 16 && flag_word(row, count, words[count])) list[count] = words[count], count++;
  int rc = program_choice(flag, text, list, count, e);
  if (rc >= 0) *out = rc;
  return rc < 0 ? rc : ERR_OK;
}

static int take_whole(const flag_row *row, const char *flag, const char *text, int32_t *out, err *e) {
  int64_t value;
  bool or_minus_one = row->low == -1;
  int rc = program_int(flag, text, (int64_t)row->low, (int64_t)row->high, &value, e);
  if (or_minus_one && (rc || value == 0))
    return err_set(e, ERR_ARG, "%s must be a whole number from 1 to %.0f, or -1, not '%s'", flag, row->high,
                   text);
  if (rc == ERR_OK) *out = (int32_t)value;
  return rc;
}

static int take_number(const flag_row *row, const char *flag, const char *text, float *out, err *e) {
  double value;
  int rc = program_double(flag, text, row->low, row->high, &value, e);
  if (rc == ERR_OK) *out = (float)value;
  return rc;
}

static int take(const flag_program *r, const flag_row *row, const char *text, flag_source from, err *e) {
  void *at = (char *)r->values + row->offset;
  char flag[FLAG_NAME_MAX + 3];
  snprintf(flag, sizeof flag, "--%s", row->name);
  r->values->from[row->id] = (uint8_t)from;
  switch (row->type) {
  case FLAG_SWITCH:
    *(bool *)at = true;
    return ERR_OK;
  case FLAG_CHOICE:
    return take_choice(row, flag, text, at, e);
  case FLAG_INT:
    return take_whole(row, flag, text, at, e);
  case FLAG_SIZE:
    return program_size(flag, text, at, e);
  case FLAG_SEED:
    return row->high == 64 ? program_u64(flag, text, at, e) : program_int(flag, text, 0, INT64_MAX, at, e);
  case FLAG_NUMBER:
    return take_number(row, flag, text, at, e);
  default:
    *(const char **)at = text;
    return row->type == FLAG_TEXT || !r->own ? ERR_OK : r->own(r->context, row->id, text, e);
  }
}

void flag_give(const flag_program *p, const flag_row *row, const char *text, flag_source from,
               const char *where) {
  err e = {0};
  if (take(p, row, text, from, &e) != ERR_OK) flag_refuse(p, where, "%s", e.text);
}

_Noreturn void flag_refuse(const flag_program *p, const char *where, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%s: %s", p->name, where);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputs("\n", stderr);
  if (!*where) fprintf(stderr, "Try `%s --help' for all flags.\n", p->name);
  exit(STATUS_USAGE);
}

/* ---- printed ---- */

/* A number that nobody may give stands for "as the rest says". */
static bool is_given(int32_t value, const flag_row *row, const flag_values *v) {
  return v->from[row->id] || (value >= row->low && value <= row->high);
}

bool flag_print(const flag_row *row, const flag_values *v, char *out, size_t size) {
  const void *at = (const char *)v + row->offset;
  char word[FLAG_WORD_MAX];
  switch (row->type) {
  case FLAG_TEXT:
  case FLAG_OWN:
    return *(const char *const *)at && snprintf(out, size, "%s", *(const char *const *)at) < (int)size;
  case FLAG_SWITCH:
    return snprintf(out, size, "%s", *(const bool *)at ? "true" : "false") < (int)size;
  case FLAG_CHOICE:
    return *(const int32_t *)at >= 0 && flag_word(row, *(const int32_t *)at, word) &&
           snprintf(out, size, "%s", word) < (int)size;
  case FLAG_INT:
    return is_given(*(const int32_t *)at, row, v) &&
           snprintf(out, size, "%" PRId32, *(const int32_t *)at) < (int)size;
  case FLAG_SIZE:
    return snprintf(out, size, "%" PRId64, *(const int64_t *)at) < (int)size;
  case FLAG_SEED:
    return v->from[row->id] && snprintf(out, size, "%" PRIu64, *(const uint64_t *)at) < (int)size;
  case FLAG_NUMBER:
    return snprintf(out, size, "%.9g", (double)*(const float *)at) < (int)size;
  default:
    return false;
  }
}
