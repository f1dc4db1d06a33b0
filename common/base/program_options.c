#include "common/base/program_options.h"

#include "common/base/min.h"
#include <string.h>

#define NAME_MAX_BYTES 40 /* of a flag; a longer one is near to none */
#define WORDS_MAX      128

/* --- what may have been meant --- */

/* Letters to insert, drop, change or swap with their neighbour (optimal string alignment). */
static int distance(const char *a, const char *b) {
  int rows[3][NAME_MAX_BYTES + 1], la = (int)strlen(a), lb = (int)strlen(b);
  if (la > NAME_MAX_BYTES || lb > NAME_MAX_BYTES) return NAME_MAX_BYTES;
  for (int j = 0; j <= lb; j++) rows[0][j] = j;
  for (int i = 1; i <= la; i++) {
    int *row = rows[i % 3];
    const int *above = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
    row[0] = i;
    for (int j = 1; j <= lb; j++) {
      row[j] = min_i32(min_i32(above[j], row[j - 1]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = min_i32(row[j], before[j - 2] + 1);
    }
  }
  return rows[la % 3][lb];
}

const char *program_nearest(const char *wrong, const char *const *words, int count) {
  const char *best = NULL;
  int allowed = 1 + (int)strlen(wrong) / 4;
  for (int i = 0; i < count; i++) {
    int d = distance(wrong, words[i]);
    if (d > allowed || (best && d == allowed)) continue;
    best = words[i];
    allowed = d;
  }
  return best;
}

/* --- flags --- */

bool program_option_ends(const struct argp_option *o) {
  return !o->name && !o->key && !o->doc && !o->group;
}

const struct argp_option *program_option_meant(const struct argp_option *o) {
  while (o->flags & OPTION_ALIAS) o--;
  return o;
}

const struct argp_option *program_option(const struct argp_option *o, const char *name, size_t size) {
  for (; !program_option_ends(o); o++)
    if (o->name && strncmp(o->name, name, size) == 0 && !o->name[size]) return program_option_meant(o);
  return NULL;
}

const struct argp_option *program_option_of_habit(const struct argp_option *options, const llama_flag *h) {
  return h->ours ? program_option(options, h->ours + 2, strlen(h->ours + 2)) : NULL;
}

const char *program_nearest_flag(const struct argp_option *options, const char *wrong) {
  const char *names[WORDS_MAX] = {"help", "usage"}, *mean[WORDS_MAX] = {"help", "usage"};
  int count = 2, habits;
  for (const struct argp_option *o = options; !program_option_ends(o) && count < WORDS_MAX; o++)
    if (o->name && !(o->flags & OPTION_HIDDEN)) names[count] = mean[count] = o->name, count++;
  const llama_flag *h = llama_flags_all(&habits);
  for (int i = 0; i < habits && count < WORDS_MAX; i++)
    if (h[i].theirs[1] == '-' && program_option_of_habit(options, &h[i]))
      names[count] = h[i].theirs + 2, mean[count++] = h[i].ours + 2;
  const char *near = program_nearest(wrong, names, count);
  for (int i = 0; i < count; i++)
    if (names[i] == near) return near ? mean[i] : NULL;
  return NULL;
}
