/* libs: service sessions ledger wire text file speculative base */
/* fuzz_session_line - a line of `tandem session import': refused with one error, or within the limits of a
 * session, and then the same when a ledger has taken it. Odd first byte: values of a right line are replaced
 * (a byte for the key, then the value up to the next zero), and its checksum is made anew. */
#include "orchestrator/ledger/ledger_import.h"
#include "orchestrator/ledger/ledger_sum.h"
#include "orchestrator/service/session_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char right[] =
    "{\"format\":\"tandem "
    "session\",\"version\":1,\"id\":\"fedcba9876543210\",\"state\":\"length\",\"model\":\"m\","
    "\"model_fingerprint\":\"00112233445566778899aabbccddeeff\",\"numerics_id\":null,\"created\":1.5,"
    "\"updated\":2,"
    "\"prompt_ids\":[1,2],\"token_ids\":[3],\"options\":{\"max_tokens\":9,\"temperature\":0.8,\"top_k\":0,"
    "\"top_p\":1.0,\"min_p\":0.0,\"repeat_penalty\":1.0,\"seed\":7,\"choice\":0,\"context\":64,\"budget\":0,"
    "\"lockstep\":false,\"selfcheck\":0,\"single\":false,\"stop_ids\":[2]},\"request\":{},\"stats\":null,"
    "\"epoch\":17,\"hash_seed\":\"0000000000000001\"}";

static sqlite3 *new_ledger(void) {
  sqlite3 *db;
  if (sqlite3_open(":memory:", &db) || ledger_sum_register(db) || ledger_schema_create(db)) abort();
  return db;
}

static void check_limits(const ledger_session *s) {
  if (s->prompt_length < 1 || s->length < s->prompt_length || s->length > WIRE_CONTEXT_MAX) abort();
  if (s->length > s->options.context || s->options.stop_count > WIRE_STOPS_MAX) abort();
  if (s->state != LEDGER_ENDED && s->state != LEDGER_INTERRUPTED) abort();
  for (int32_t i = 0; i < s->length; i++)
    if (s->tokens[i] < 0) abort();
}

/* It is in the ledger as it was in the line: to import it again changes nothing. */
static void check_import(const ledger_session *s) {
  static sqlite3 *db;
  ledger_imported how;
  ledger_session got;
  err e = {0};
  if (!db) db = new_ledger();
  if (ledger_import(db, "it", s, true, &how, &e)) abort();
  if (ledger_query_load(db, "it", s->id, &got, &e)) abort();
  if (got.length != s->length || memcmp(got.tokens, s->tokens, (size_t)s->length * sizeof *s->tokens) != 0)
    abort();
  ledger_session_fini(&got);
  if (ledger_import(db, "it", s, false, &how, &e) || how != LEDGER_IMPORT_SAME) abort();
}

static void read_line(const char *text, size_t size) {
  ledger_session s;
  err e = {0};
  int rc = session_line_read(text, size, &s, &e);
  if (rc && (rc != e.code || !e.text[0])) abort();
  if (!rc) {
    check_limits(&s);
    check_import(&s);
  }
  ledger_session_fini(&s);
}

static void replace(json_t *o, uint8_t which, const char *value, size_t size) {
  const char *key = NULL;
  json_t *unused;
  size_t at = 0, wanted = which % json_object_size(o);
  json_object_foreach(o, key, unused) if (at++ == wanted) break;
  json_t *v = json_loadb(value, size, JSON_DECODE_ANY, NULL);
  if (v) json_object_set_new(o, key, v);
}

static void read_changed(const uint8_t *data, size_t size) {
  json_t *o = json_loads(right, 0, NULL);
  while (size > 1) {
    const uint8_t *end = memchr(data + 1, 0, size - 1);
    size_t length = end ? (size_t)(end - data - 1) : size - 1;
    replace(o, data[0], (const char *)data + 1, length);
    size -= 1 + length + (end != NULL);
    data += 1 + length + (end != NULL);
  }
  char *text = json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(SESSION_LINE_DIGITS)),
       sum[33];
  if (!text) abort();
  hash_format(hash_bytes(text, strlen(text)), sum);
  free(text);
  json_object_set_new(o, "checksum", json_string(sum));
  text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(SESSION_LINE_DIGITS));
  json_decref(o);
  if (!text) abort();
  read_line(text, strlen(text));
  free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1) return 0;
  if (data[0] % 2) {
    read_changed(data + 1, size - 1);
    return 0;
  }
  char *text = malloc(size); /* heap: a read beyond its end is seen */
  if (!text) abort();
  memcpy(text, data + 1, size - 1);
  read_line(text, size - 1);
  free(text);
  return 0;
}
