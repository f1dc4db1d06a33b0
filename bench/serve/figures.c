#include "bench/serve/figures.h"

#include <stdlib.h>
#include <string.h>

typedef struct sample {
  double *values;
  size_t count;
} sample;

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The nearest rank: the smallest value that `share` of all do not exceed. */
static double nearest_rank(const sample *s, double share) {
  size_t rank = (size_t)(share * (double)s->count + 0.999999);
  return s->values[rank ? rank - 1 : 0];
}

static percentiles sorted(sample *s) {
  if (s->count == 0) return (percentiles){0};
  double sum = 0;
  for (size_t i = 0; i < s->count; i++) sum += s->values[i];
  qsort(s->values, s->count, sizeof *s->values, by_size);
  return (percentiles){nearest_rank(s, 0.5), nearest_rank(s, 0.9), nearest_rank(s, 0.99),
                       sum / (double)s->count};
}

static double ms(uint64_t from_us, uint64_t to_us) {
  return (double)(to_us - from_us) / 1e3;
}

static bool is_whole(const load_answer *a) {
  return a->stream.error[0] == 0;
}

static int64_t tokens_of(const load_answer *a) {
  const answer_stream *s = &a->stream;
  return s->tokens >= 0 ? s->tokens : (int64_t)s->gap_count + (s->first_us != 0);
}

/* ---- a value of each whole answer that has one; negative: it has none ---- */

static double first_of(const load_answer *a) {
  return a->stream.first_us ? ms(a->begin_us, a->stream.first_us) : -1;
}

static double token_of(const load_answer *a) {
  return tokens_of(a) > 1 && a->stream.last_us > a->stream.first_us
             ? ms(a->stream.first_us, a->stream.last_us) / (double)(tokens_of(a) - 1)
             : -1;
}

static double whole_of(const load_answer *a) {
  return ms(a->begin_us, a->end_us);
}

static percentiles measure(double (*value)(const load_answer *), const load_answer *answers, size_t count,
                           double *room) {
  sample s = {.values = room};
  for (size_t i = 0; i < count; i++) {
    double v = is_whole(&answers[i]) ? value(&answers[i]) : -1;
    if (v >= 0) room[s.count++] = v;
  }
  return sorted(&s);
}

static percentiles measure_gaps(const load_answer *answers, size_t count, double *room) {
  sample s = {.values = room};
  for (size_t i = 0; i < count; i++)
    for (size_t k = 0; is_whole(&answers[i]) && k < answers[i].stream.gap_count; k++)
      room[s.count++] = answers[i].stream.gaps_us[k] / 1e3;
  return sorted(&s);
}

/* ---- sums ---- */

static void add(int64_t *sum, int64_t value) {
  if (value >= 0) *sum = (*sum < 0 ? 0 : *sum) + value;
}

static size_t add_answers(figures *f, const load_answer *answers, size_t count) {
  uint64_t begin = UINT64_MAX, end = 0;
  size_t gaps = 0;
  for (size_t i = 0; i < count; i++) {
    const load_answer *a = &answers[i];
    if (a->begin_us < begin) begin = a->begin_us;
    if (a->end_us > end) end = a->end_us;
    gaps += a->stream.gap_count;
    if (!is_whole(a)) {
      if (!f->failed++) f->error = a->stream.error;
      continue;
    }
    f->tokens += tokens_of(a);
    add(&f->drafted, a->stream.drafted);
    add(&f->accepted, a->stream.accepted);
  }
  f->seconds = end > begin ? (double)(end - begin) / 1e6 : 0;
  return gaps;
}

int figures_make(figures *f, const load_answer *answers, size_t count) {
  *f = (figures){.answers = count, .drafted = -1, .accepted = -1};
  size_t gaps = add_answers(f, answers, count);
  double *room = malloc((gaps + count + 1) * sizeof *room);
  if (!room) return ERR_NOMEM;
  f->first = measure(first_of, answers, count, room);
  f->token = measure(token_of, answers, count, room);
  f->whole = measure(whole_of, answers, count, room);
  f->between = measure_gaps(answers, count, room);
  free(room);
  return ERR_OK;
}

static bool same_text(const answer_text *a, const answer_text *b) {
  return a->size == b->size && (a->size == 0 || memcmp(a->bytes, b->bytes, a->size) == 0);
}

size_t figures_differing(const load_answer *a, const load_answer *b, size_t count) {
  size_t differ = 0;
  for (size_t i = 0; i < count; i++)
    differ += is_whole(&a[i]) && is_whole(&b[i]) && !same_text(&a[i].stream.text, &b[i].stream.text);
  return differ;
}

double figures_tokens_per_second(const figures *f) {
  return f->seconds > 0 ? (double)f->tokens / f->seconds : 0;
}
