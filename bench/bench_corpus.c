/* bench_corpus - what looking up earlier texts costs: bench_corpus MODEL.gguf TEXT [TOKENS]
 *
 * Makes a corpus of the first TOKENS tokens (default 1,000,000) of a text that has as many, and finds
 * endings: of the text itself, and the same with another last token but one, which have hardly occurred.
 * Beside it a plain search of all tokens for the longest ending, as without an index. */
#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/text/tokenizer.h"
#include "draft_worker/drafters/corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUERIES  20000
#define SEARCHES 20

static double resident_mib(void) {
  long pages = 0;
  FILE *f = fopen("/proc/self/statm", "r");
  if (f && fscanf(f, "%*d %ld", &pages) != 1) pages = 0;
  if (f) fclose(f);
  return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

static char *read_all(const char *path, size_t *size) {
  FILE *f = fopen(path, "rb");
  char *text = malloc(TOKENIZER_TEXT_MAX);
  *size = f && text ? fread(text, 1, TOKENIZER_TEXT_MAX, f) : 0;
  if (f) fclose(f);
  return text;
}

static int read_tokens(const char *model, const char *path, tokenizer_ids *out, err *e) {
  gguf *g;
  tokenizer *t = NULL;
  size_t size;
  char *text = read_all(path, &size);
  int rc = gguf_open(&g, model, e);
  if (rc == ERR_OK) rc = tokenizer_open(&t, g, e);
  if (rc == ERR_OK) rc = tokenizer_encode(t, text, size, 0, out, e);
  if (t) tokenizer_close(t);
  free(text);
  return rc;
}

/* The ending before tokens[at]; with another last but one where the text has hardly had it. */
static int32_t ending_at(const int32_t *tokens, int32_t at, bool strange, int32_t out[CORPUS_ENDING_MAX]) {
  int32_t count = at < CORPUS_ENDING_MAX ? at : CORPUS_ENDING_MAX;
  for (int32_t i = 0; i < count; i++) out[i] = tokens[at - 1 - i];
  if (strange && count > 1) out[1] = tokens[at / 2];
  return count;
}

static int32_t search(const int32_t *tokens, int32_t size, const int32_t *ending, int32_t count) {
  int32_t longest = 0;
  for (int32_t at = 1; at < size; at++) {
    int32_t n = 0;
    while (n < count && n < at && tokens[at - 1 - n] == ending[n]) n++;
    if (n > longest) longest = n;
  }
  return longest;
}

static void query(const corpus *c, const int32_t *tokens, int32_t size, bool strange, const char *what) {
  int32_t ending[CORPUS_ENDING_MAX];
  corpus_found found[CORPUS_FOUND_MAX];
  const uint32_t key[2] = {7, 0};
  uint64_t sum = 0, most = 0, searched = 0;
  long seen = 0;
  for (int i = 0; i < QUERIES; i++) {
    const uint32_t counter[4] = {(uint32_t)i};
    int32_t at = 2 + (int32_t)(philox4x32(counter, key).lane[0] % (uint32_t)(size - 2));
    int32_t count = ending_at(tokens, at, strange, ending);
    uint64_t from = clock_us();
    seen += corpus_find(c, ending, count, found);
    uint64_t us = clock_us() - from;
    sum += us;
    if (us > most) most = us;
    from = clock_us();
    if (i < SEARCHES) seen += search(tokens, size, ending, count) == 0;
    if (i < SEARCHES) searched += clock_us() - from;
  }
  printf("%-28s mean %6.2f us, most %4llu us, %.1f occurrences; a search of all tokens %.0f us\n", what,
         (double)sum / QUERIES, (unsigned long long)most, (double)seen / QUERIES,
         (double)searched / SEARCHES);
}

static void run(const int32_t *tokens, int32_t size) {
  err e = {0};
  corpus *c;
  double before = resident_mib();
  uint64_t from = clock_us();
  if (corpus_open(&c, CORPUS_TOKENS_MAX, &e)) return;
  corpus_add(c, tokens, size);
  printf("%d tokens: made in %.0f ms, %.1f MiB\n", size, (double)(clock_us() - from) / 1000,
         resident_mib() - before);
  query(c, tokens, size, false, "endings of the text");
  query(c, tokens, size, true, "endings that are rare");
  corpus_close(c);
}

int main(int argc, char **argv) {
  tokenizer_ids ids = {0};
  err e = {0};
  if (argc < 3) {
    fprintf(stderr, "usage: bench_corpus MODEL.gguf TEXT [TOKENS]\n");
    return 2;
  }
  int rc = read_tokens(argv[1], argv[2], &ids, &e);
  size_t wanted = argc > 3 ? (size_t)atol(argv[3]) : 1000000;
  if (rc != ERR_OK)
    fprintf(stderr, "bench_corpus: %s\n", e.text);
  else if (ids.count < wanted || wanted < 3)
    fprintf(stderr, "bench_corpus: the text has only %zu tokens: give a longer one\n", ids.count);
  else
    run(ids.ids, (int32_t)wanted);
  tokenizer_ids_fini(&ids);
  return rc != ERR_OK || ids.count < wanted;
}
