/* bench_grammar - what following a grammar costs: bench_grammar MODEL.gguf GRAMMAR-FILE [TOKENS]
 *
 * Writes answers of random allowed tokens, and for each token takes the time of the set of all tokens that
 * may come next (the mask), and of looking at 16 tokens instead, as a choice without filters does. */
#include "common/base/clock.h"
#include "common/grammar/grammar_matcher.h"

#include <stdio.h>
#include <stdlib.h>

#define TEXT_MAX 65536
#define LOOKED   16

typedef struct times {
  uint64_t sum, most;
  int32_t count;
} times;

static void note(times *t, uint64_t us) {
  t->sum += us;
  t->most = us > t->most ? us : t->most;
  t->count++;
}

static void print(const char *what, const times *t) {
  printf("%-28s %6d times, mean %8.1f us, most %8llu us\n", what, t->count,
         t->count ? (double)t->sum / t->count : 0, (unsigned long long)t->most);
}

static int32_t random_allowed(const uint32_t *mask, int32_t count, uint32_t *seed) {
  *seed = *seed * 1664525u + 1013904223u;
  int32_t from = (int32_t)((uint64_t)*seed * (uint32_t)count >> 32);
  for (int32_t i = 0; i < count; i++) {
    int32_t token = (from + i) % count;
    if (mask[token / 32] >> token % 32 & 1) return token;
  }
  return -1;
}

static void run(grammar_matcher *m, int32_t vocabulary, int32_t stop, int32_t count) {
  int32_t *ids = calloc((size_t)count, sizeof *ids), n = 0, answers = 0, stuck = 0;
  times masks = {0}, again = {0}, looks = {0};
  uint32_t seed = 1;
  for (int32_t done = 0; ids && done < count; done++) {
    uint64_t start = clock_us();
    grammar_matcher_move(m, ids, n, NULL, 0);
    for (int32_t i = 0; i < LOOKED; i++) grammar_matcher_allows(m, (int32_t)(seed + (uint32_t)i) & 1023);
    uint64_t looked = clock_us();
    const uint32_t *mask = grammar_matcher_mask(m);
    uint64_t made = clock_us();
    mask = mask ? grammar_matcher_mask(m) : NULL;
    note(&again, clock_us() - made);
    note(&looks, looked - start);
    note(&masks, made - looked);
    int32_t token = mask ? random_allowed(mask, vocabulary, &seed) : -1;
    stuck += token < 0;
    answers += token < 0 || token == stop;
    if (token < 0 || token == stop)
      n = 0;
    else
      ids[n++] = token;
  }
  print("mask", &masks);
  print("the same mask again", &again);
  print("going on, and 16 tokens", &looks);
  printf("%d answers ended, %d of them where no token is allowed\n", answers, stuck);
  free(ids);
}

static int open_all(const char *model, const char *path, tokenizer **t, grammar_vocabulary **v,
                    grammar_matcher **m, err *e) {
  static char text[TEXT_MAX];
  gguf *g;
  grammar *rules = NULL;
  FILE *f = fopen(path, "r");
  if (!f) return err_set(e, ERR_IO, "cannot read %s", path);
  size_t size = fread(text, 1, sizeof text, f);
  fclose(f);
  int rc = gguf_open(&g, model, e);
  if (rc) return rc;
  rc = tokenizer_open(t, g, e);
  gguf_close(g);
  uint64_t start = clock_us();
  if (rc == ERR_OK) rc = grammar_vocabulary_open(v, *t, tokenizer_size(*t), e);
  printf("vocabulary: %d tokens, %d nodes, %.1f ms\n", rc ? 0 : (*v)->token_count, rc ? 0 : (*v)->node_count,
         (double)(clock_us() - start) / 1000);
  start = clock_us();
  if (rc == ERR_OK) rc = grammar_read(&rules, text, size, e);
  if (rc == ERR_OK) rc = grammar_matcher_open(m, rules, *v, tokenizer_stops(*t, &(int32_t){0}), 1, e);
  printf("grammar: %zu bytes, %.1f ms\n", size, (double)(clock_us() - start) / 1000);
  return rc;
}

int main(int argc, char **argv) {
  tokenizer *t = NULL;
  grammar_vocabulary *v = NULL;
  grammar_matcher *m = NULL;
  err e = {0};
  if (argc < 3) {
    fprintf(stderr, "usage: bench_grammar MODEL.gguf GRAMMAR-FILE [TOKENS]\n");
    return 2;
  }
  int rc = open_all(argv[1], argv[2], &t, &v, &m, &e);
  if (rc)
    fprintf(stderr, "bench_grammar: %s\n", e.text);
  else
    run(m, v->token_count, tokenizer_eos(t), argc > 3 ? atoi(argv[3]) : 2000);
  grammar_matcher_close(m);
  grammar_vocabulary_free(v);
  if (t) tokenizer_close(t);
  return rc != 0;
}
