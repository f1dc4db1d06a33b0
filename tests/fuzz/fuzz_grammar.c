/* libs: service grammar */
/* Grammars and schemas: whatever the text is, reading it ends, and so does following it; a schema that is
 * taken gives a grammar that is one; and a state is the same however it was reached. */
#include "common/grammar/grammar_matcher.h"
#include "orchestrator/service/json_schema.h"
#include "tests/support/random.h"

#include <stdlib.h>
#include <string.h>

enum { WORDS = 8, STOP = 256 + WORDS, TOKENS };
static const char *const words[WORDS] = {"{\"", "\":", "ab", "\xc3", "\xa4}", "true", "]]", ", "};
static grammar_vocabulary *vocabulary;

static const char *piece(const void *context, int32_t id, size_t *size) {
  static char byte;
  (void)context;
  byte = (char)id;
  *size = id == STOP ? 0 : id < 256 ? 1 : strlen(words[id - 256]);
  return id < 256 ? &byte : id < STOP ? words[id - 256] : NULL;
}

static grammar_matcher *open_matcher(const char *text, size_t size) {
  static const int32_t stops[] = {STOP};
  grammar *g;
  grammar_matcher *m;
  err e = {0};
  int rc = grammar_read(&g, text, size, &e);
  if (rc && (g || rc != e.code || !e.text[0])) abort();
  if (rc) return NULL;
  if (grammar_matcher_open(&m, g, vocabulary, stops, 1, &e) && (m || !e.text[0])) abort();
  return m;
}

/* Goes where `choice` points among the allowed tokens, a few steps. */
static void follow(grammar_matcher *m, grammar_matcher *other, uint32_t choice) {
  int32_t ids[12], n = 0;
  uint64_t random = choice;
  for (; n < 12; n++) {
    if (grammar_matcher_move(m, ids, n / 2, ids + n / 2, n - n / 2)) abort();
    const uint32_t *mask = grammar_matcher_mask(m);
    int32_t token = -1;
    for (int32_t i = 0; mask && i < TOKENS; i++) {
      int32_t at = (int32_t)((choice + (uint32_t)i) % TOKENS);
      bool allowed = mask[at / 32] >> at % 32 & 1;
      if (i < 40 && allowed != grammar_matcher_allows(m, at)) abort();
      if (i < 40) mask = grammar_matcher_mask(m);
      if (allowed && at != STOP && token < 0) token = at;
    }
    if (token < 0) break;
    ids[n] = token;
    choice = (uint32_t)random_next(&random);
  }
  if (grammar_matcher_move(other, ids, n, NULL, 0) || grammar_matcher_move(m, ids, n, NULL, 0)) abort();
  const uint32_t *a = grammar_matcher_mask(m), *b = grammar_matcher_mask(other);
  if (!a != !b || (a && memcmp(a, b, (TOKENS + 31) / 32 * sizeof *a) != 0)) abort();
}

static void check_grammar(const char *text, size_t size, uint32_t choice) {
  grammar_matcher *m = open_matcher(text, size), *other = m ? open_matcher(text, size) : NULL;
  if (m) follow(m, other, choice);
  grammar_matcher_close(m);
  grammar_matcher_close(other);
}

static void check_schema(const char *text, size_t size, uint32_t choice) {
  char *rules;
  err e = {0};
  json_t *schema = json_loadb(text, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
  if (!schema) return;
  if (json_schema_grammar(schema, &rules, &e) == ERR_OK)
    check_grammar(rules, strlen(rules), choice);
  else if (rules || !e.text[0])
    abort();
  free(rules);
  json_decref(schema);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  err e;
  if (!vocabulary && grammar_vocabulary_make(&vocabulary, TOKENS, piece, NULL, &e)) abort();
  if (size < 2) return 0;
  if (data[0] % 2)
    check_schema((const char *)data + 2, size - 2, data[1]);
  else
    check_grammar((const char *)data + 2, size - 2, data[1]);
  return 0;
}
