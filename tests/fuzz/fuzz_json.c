/* libs: service sessions ledger wire text file speculative base */
/* fuzz_json - the lines and objects of JSON that are read: a request, a session's options and what the
 * orchestrator knows of it, a head's calibration. Refused with one error, or within their limits. First byte:
 * which of them, and whether it goes on from a right beginning. */
#include "common/file/head_calibration.h"
#include "common/file/json.h"
#include "orchestrator/ledger/options_json.h"
#include "orchestrator/service/request_json.h"
#include "orchestrator/service/session_about.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCABULARY = 300, TEXT_MAX = 1 << 16 };

static void check_request_line(const char *text, size_t size) {
  request defaults, r;
  json_t *id;
  err e = {0};
  request_init(&defaults);
  int rc = request_json_read(text, size, &defaults, VOCABULARY, &r, &id, &e);
  if (rc && (rc != e.code || !e.text[0])) abort();
  if (!rc && r.prompt_kind == REQUEST_NO_PROMPT) abort();
  if (!rc && (r.stop_count > DETOKENIZER_STOP_MAX || r.message_count > REQUEST_JSON_MESSAGES_MAX)) abort();
  for (size_t i = 0; !rc && i < r.ids.count; i++)
    if (r.ids.ids[i] < 0 || r.ids.ids[i] >= VOCABULARY) abort();
  if (!rc) request_check(&r, &e);
  json_decref(id);
  request_fini(&r);
  request_fini(&defaults);
  request_json_is_blank(text, size);
}

static void check_options(const char *text, size_t size) {
  int32_t stops[WIRE_STOPS_MAX];
  msg_bias bias;
  msg_options o;
  err e = {0};
  (void)size;
  char *grammar, *other;
  if (options_json_read(text, &o, stops, &bias, &grammar, &e)) return;
  if (o.stop_count < 0 || o.stop_count > WIRE_STOPS_MAX) abort();
  if (o.bias_count < 0 || o.bias_count > SAMPLER_BIAS_MAX) abort();
  char *again = options_json_text(&o);
  if (!again || options_json_read(again, &o, stops, &bias, &other, &e)) abort();
  if ((grammar != NULL) != (other != NULL) || (grammar && strcmp(grammar, other) != 0)) abort();
  free(grammar);
  free(other);
  free(again);
}

static void check_about(const char *text, size_t size) {
  session_about a;
  (void)size;
  session_about_read(&a, text);
  if (a.stop_count < 0 || a.stop_count > DETOKENIZER_STOP_MAX) abort();
  session_about_fini(&a);
}

static void check_calibration(const char *text, size_t size) {
  head_calibration c;
  json_t *object;
  err e = {0};
  if (json_parse_object(&object, "calibration", text, size, &e)) return;
  int rc = head_calibration_read_json(&c, object, &e);
  if (rc && (rc != e.code || !e.text[0])) abort();
  json_decref(object);
}

static const struct {
  void (*check)(const char *text, size_t size);
  const char *begin;
} kinds[] = {
    {check_request_line, "{\"prompt\":\"a\",\"max_tokens\":5"},
    {check_request_line, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"},
    {check_request_line, "{\"prompt_ids\":[1,2]"},
    {check_options, "{\"max_tokens\":5,\"context\":9"},
    {check_about, "{\"title\":\"a\",\"stop\":[\"b\"]"},
    {check_calibration, "{\"greedy\":[1,0,0,0,0,0]"},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1 || size > TEXT_MAX / 2) return 0;
  char *text = malloc(TEXT_MAX); /* heap: a read beyond its end is seen */
  if (!text) abort();
  size_t kind = data[0] / 2 % KINDS, at = data[0] % 2 ? strlen(kinds[kind].begin) : 0;
  memcpy(text, kinds[kind].begin, at);
  memcpy(text + at, data + 1, size - 1);
  at += size - 1;
  text[at] = 0;
  text = realloc(text, at + 1);
  kinds[kind].check(text, at);
  free(text);
  return 0;
}
