/* libs: service */
/* Schemas of JSON: the texts that the grammar of each takes, and what is refused by its name. */
#include "common/grammar/grammar_states.h"
#include "orchestrator/service/json_schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *grammar_of(const char *schema, err *e) {
  char *text = NULL;
  json_t *value = json_loads(schema, JSON_DECODE_ANY, NULL);
  if (!value) fail_msg("%s is no JSON", schema);
  int rc = json_schema_grammar(value, &text, e);
  assert_true((rc == ERR_OK) == (text != NULL));
  json_decref(value);
  return text;
}

/* Is the text whole by the grammar? */
static bool takes(const char *rules, const char *text) {
  grammar *g;
  grammar_states *s;
  err e = {0};
  int32_t work;
  if (grammar_read(&g, rules, strlen(rules), &e)) fail_msg("%s\n%s", e.text, rules);
  assert_int_equal(grammar_states_open(&s, g), ERR_OK);
  int32_t at = grammar_states_begin(s);
  for (; *text && at > GRAMMAR_STATES_DEAD; text++) at = grammar_states_step(s, at, (uint8_t)*text, &work);
  bool whole = at > GRAMMAR_STATES_DEAD && grammar_states_ends(s, at);
  grammar_states_close(s);
  grammar_free(g);
  return whole;
}

#define PERSON                                                                                               \
  "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"}}"
#define THREE                                                                                                \
  "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2},\"c\":{\"const\":3}}"

static const struct {
  const char *schema, *good, *bad; /* texts, each ends with | */
} cases[] = {
    {"true", "1|-0.5e+3|\"a\\u00e4\\n\"|null|[]|{}|[1,{\"a\":[true]}]|", "|01|1.|tru|{a:1}|[1,]|'a'|\"\n\"|"},
    {"{\"title\":\"any\",\"format\":\"date\"}", "1|false|", "x|"},
    {"{\"type\":\"object\"}", "{}|{\"a\": 1}|{ \"a\":{} , \"b\" : [] }|", "1|[]|{\"a\"}|{\"a\":1,}|"},
    {"{\"type\":[\"string\",\"null\"]}", "\"\"|null|", "1|"},
    {"{\"type\":\"integer\"}", "0|-12|", "1.5|-|00|"},
    {"{\"enum\":[\"a\\\"b\",2,null,{\"x\":[]}]}", "\"a\\\"b\"|2|null|{\"x\":[]}|", "\"a\"|3|"},
    {"{\"type\":\"string\",\"enum\":[\"a\",\"b\"]}", "\"a\"|\"b\"|", "\"c\"|a|"},
    {"{\"const\":\"\xc3\xa4\\n\"}", "\"\xc3\xa4\\n\"|", "\"a\"|"},
    {"{\"anyOf\":[{\"type\":\"null\"},{\"const\":5}]}", "null|5|", "6|"},
    {"{\"oneOf\":[{\"type\":\"null\"},{\"const\":5}]}", "null|5|", "6|"},
    {"{\"allOf\":[{\"const\":5}]}", "5|", "6|"},
    {"{\"minLength\":2,\"maxLength\":3}", "\"ab\"|\"\\\"bc\"|\"\xc3\xa4\xe2\x82\xac\"|", "\"a\"|\"abcd\"|"},
    {"{\"type\":\"string\",\"minLength\":2}", "\"ab\"|\"abcdef\"|", "\"a\"|"},
    {PERSON "}", "{}|{\"name\":\"x\"}|{\"age\":3}|{\"name\": \"x\", \"age\": 3}|",
     "{\"age\":3,\"name\":\"x\"}|{\"b\":1}|{\"name\":1}|{,\"age\":3}|{\"name\":\"x\",}|"},
    {PERSON ",\"required\":[\"age\"]}", "{\"age\":3}|{\"name\":\"x\",\"age\":3}|", "{}|{\"name\":\"x\"}|"},
    {PERSON ",\"required\":[\"name\",\"age\"]}", "{\"name\":\"x\",\"age\":3}|",
     "{}|{\"name\":\"x\"}|{\"age\":3}|"},
    {PERSON ",\"additionalProperties\":{\"type\":\"null\"}}",
     "{}|{\"b\":null}|{\"name\":\"x\",\"b\":null,\"c\":null}|", "{\"b\":1}|{\"b\":null,}|"},
    {PERSON ",\"additionalProperties\":false}", "{}|{\"age\":3}|", "{\"b\":null}|"},
    {THREE "}", "{}|{\"a\":1}|{\"b\":2}|{\"a\":1,\"c\":3}|{\"b\":2,\"c\":3}|{\"a\":1,\"b\":2,\"c\":3}|",
     "{\"c\":3,\"a\":1}|{\"a\":2}|{\"a\":1,,\"c\":3}|"},
    {"{\"additionalProperties\":true}", "{}|{\"a\":1,\"b\":[]}|", "[]|{1:1}|"},
    {"{\"type\":\"array\"}", "[]|[1,\"a\"]|", "{}|[1 2]|"},
    {"{\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", "[1,2]|[1, 2,3]|",
     "[]|[1]|[1,2,3,4]|[1,null]|"},
    {"{\"items\":{\"type\":\"integer\"},\"maxItems\":2}", "[]|[1]|[1,2]|", "[1,2,3]|[,1]|"},
    {"{\"items\":{\"type\":\"integer\"},\"minItems\":1}", "[1]|[1,2,3,4]|", "[]|"},
    {"{\"type\":\"array\",\"maxItems\":0}", "[]|", "[1]|"},
    {"{\"type\":\"array\",\"maxItems\":1}", "[]|[1]|", "[1,2]|"},
    {"{\"prefixItems\":[{\"const\":1},{\"const\":2}]}", "[1,2]|", "[1]|[1,2,3]|[]|"},
    {"{\"prefixItems\":[{\"const\":1}],\"items\":{\"const\":3}}", "[1]|[1,3,3]|", "[1,2]|[]|"},
    {"{\"$ref\":\"#/$defs/tree\",\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":{\"next\":"
     "{\"anyOf\":[{\"type\":\"null\"},{\"$ref\":\"#/$defs/tree\"}]}},\"required\":[\"next\"]}}}",
     "{\"next\":null}|{\"next\":{\"next\":{\"next\":null}}}|", "{}|{\"next\":1}|"},
    {"{\"items\":{\"$ref\":\"#\"}}", "[]|[[],[[]]]|", "[1]|"},
    {"{\"definitions\":{\"x\":{\"const\":7}},\"$ref\":\"#/definitions/x\"}", "7|", "8|"},
};

static void check_texts(size_t i, const char *rules, const char *texts, bool good) {
  for (const char *p = texts; *p; p = strchr(p, '|') + 1) {
    char *one = strndup(p, (size_t)(strchr(p, '|') - p));
    if (takes(rules, one) != good) fail_msg("%s: %s\n%s", cases[i].schema, one, rules);
    free(one);
  }
}

static void which_texts_a_schema_allows(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    err e = {0};
    char *rules = grammar_of(cases[i].schema, &e);
    if (!rules) fail_msg("%s: %s", cases[i].schema, e.text);
    check_texts(i, rules, cases[i].good, true);
    check_texts(i, rules, cases[i].bad, false);
    free(rules);
  }
}

static const struct {
  const char *schema, *says;
} refused[] = {
    {"5", "must be an object"},
    {"false", "must be an object"},
    {"{\"pattern\":\"a\"}", "\"pattern\" is not supported"},
    {"{\"type\":\"integer\",\"minimum\":3}", "\"minimum\" is not supported"},
    {"{\"properties\":{\"a\":{\"uniqueItems\":true}}}", "\"uniqueItems\" is not supported"},
    {"{\"type\":\"text\"}", "\"type\" must be"},
    {"{\"type\":[]}", "\"type\" must be"},
    {"{\"type\":3}", "\"type\" must be"},
    {"{\"enum\":[]}", "\"enum\" must be"},
    {"{\"anyOf\":[]}", "\"anyOf\" must be"},
    {"{\"allOf\":[{},{}]}", "\"allOf\" of several"},
    {"{\"anyOf\":[{}],\"properties\":{}}", "\"anyOf\" beside other"},
    {"{\"enum\":[1],\"const\":1}", "beside another choice"},
    {"{\"$ref\":\"#/$defs/a\"}", "names no schema"},
    {"{\"$ref\":\"http://x/y\"}", "names no schema"},
    {"{\"$ref\":4}", "names no schema"},
    {"{\"minLength\":-1}", "\"minLength\" must be a whole number"},
    {"{\"minLength\":2001}", "\"minLength\" is above"},
    {"{\"minItems\":3,\"maxItems\":2}", "\"maxItems\" is below"},
    {"{\"items\":false,\"minItems\":1}", "\"minItems\" asks"},
    {"{\"properties\":[]}", "\"properties\" must be"},
    {"{\"required\":\"a\"}", "\"required\" must be"},
    {"{\"required\":[\"a\"]}", "\"a\" is required"},
    {"{\"additionalProperties\":1}", "\"additionalProperties\" must be"},
};

static void what_is_not_supported_is_named(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    err e = {0};
    char *rules = grammar_of(refused[i].schema, &e);
    if (rules || !strstr(e.text, refused[i].says))
      fail_msg("%s: %s, not '%s'", refused[i].schema, rules ? "is taken" : e.text, refused[i].says);
  }
}

static void deep_and_large_schemas_are_refused(void **state) {
  (void)state;
  char text[4096] = "", *rules;
  err e = {0};
  for (int i = 0; i < 40; i++) strcat(text, "{\"items\":");
  strcat(text, "true");
  for (int i = 0; i < 40; i++) strcat(text, "}");
  assert_null(rules = grammar_of(text, &e));
  assert_int_equal(e.code, ERR_LIMIT);
  json_t *large = json_object(), *list = json_array();
  for (int i = 0; i < 513; i++) json_array_append_new(list, json_integer(i));
  json_object_set_new(large, "enum", list);
  assert_int_equal(json_schema_grammar(large, &rules, &e), ERR_LIMIT);
  json_array_remove(list, 0);
  assert_int_equal(json_schema_grammar(large, &rules, &e), ERR_OK);
  assert_true(takes(rules, "512"));
  free(rules);
  json_decref(large);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(which_texts_a_schema_allows),
      cmocka_unit_test(what_is_not_supported_is_named),
      cmocka_unit_test(deep_and_large_schemas_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
