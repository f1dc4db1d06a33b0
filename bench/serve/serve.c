#include "bench/serve/serve.h"

#include "bench/serve/passes.h"
#include "common/base/program.h"
#include "common/command_line/flag_reader.h"
#include <curl/curl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define URL_MAX   2048
#define MODEL_MAX 256

typedef enum { ENDPOINT_CHAT, ENDPOINT_COMPLETIONS } endpoint;
typedef enum { SPECULATION_ON, SPECULATION_OFF, SPECULATION_BOTH } speculation;

typedef struct flags {
  flag_values given;
  const char *url, *prompts;
  char whole_url[URL_MAX], found_model[MODEL_MAX];
} flags;

/* ---- flags ---- */

static int check_whole(void *context, err *e) {
  flags *f = context;
  f->url = f->given.arguments[0], f->prompts = f->given.arguments[1];
  if (!f->url) return err_set(e, ERR_ARG, "no server: give its address, such as http://127.0.0.1:8080");
  if (!f->prompts) return err_set(e, ERR_ARG, "no prompts: give a file of JSON lines with a \"prompt\" each");
  return ERR_OK;
}

/* "1,4,16". False: it is no such list. */
static bool parse_streams(passes_options *o, const char *text) {
  char *copy = strdup(text), *rest = copy;
  bool well = copy != NULL;
  for (const char *one; well && (one = strsep(&rest, ","));) {
    int64_t value;
    well = o->streams_count < PASSES_STREAMS_MAX &&
           program_int("--concurrency", one, 1, LOAD_STREAMS_MAX, &value, NULL) == ERR_OK;
    if (well) o->streams[o->streams_count++] = (int32_t)value;
  }
  free(copy);
  return well;
}

/* ---- the server ---- */

/* URL, with or without /v1, and `path` behind it. */
static bool make_url(char out[URL_MAX], const char *url, const char *path) {
  size_t size = strlen(url);
  while (size && url[size - 1] == '/') size--;
  if (size >= 3 && memcmp(url + size - 3, "/v1", 3) == 0) size -= 3;
  bool has_scheme = strstr(url, "://") != NULL;
  return snprintf(out, URL_MAX, "%s%.*s/v1/%s", has_scheme ? "" : "http://", (int)size, url, path) < URL_MAX;
}

/* Asks even where --model names one: a server that does not answer is said once, and not for each request. */
static int find_model(flags *f, err *e) {
  char url[URL_MAX], *body;
  if (!make_url(url, f->url, "models") ||
      !make_url(f->whole_url, f->url,
                f->given.endpoint == ENDPOINT_CHAT ? "chat/completions" : "completions"))
    return err_set(e, ERR_ARG, "the address is too long");
  int code = load_get(url, f->given.api_keys, &body, e);
  if (code) return code;
  json_t *o = json_loads(body, 0, NULL);
  const char *id = json_string_value(json_object_get(json_array_get(json_object_get(o, "data"), 0), "id"));
  snprintf(f->found_model, sizeof f->found_model, "%s", id ? id : "default");
  if (!f->given.model) f->given.model = f->found_model;
  json_decref(o);
  free(body);
  return ERR_OK;
}

/* ---- telling ---- */

static void print_head(const flags *f) {
  printf("server   %s, model %s\n", f->whole_url, f->given.model);
  printf("load     %s, answers of at most %d tokens, temperature %g\n\n", f->prompts,
         (int)f->given.max_tokens, (double)f->given.temperature);
  printf("%-18s  %17s  %23s  %23s  %23s  %7s\n", "", "", "first token, ms", "between tokens, ms",
         "whole answer, ms", "tokens");
  printf("%7s %10s  %8s %8s", "streams", "draft", "tok/s", "failed");
  for (int i = 0; i < 3; i++) printf("  %7s %7s %7s", "p50", "p90", "p99");
  printf("  %7s\n", "a step");
}

static void print_times(const percentiles *p) {
  printf("  %7.1f %7.1f %7.1f", p->p50, p->p90, p->p99);
}

/* The target's steps: those that gave the tokens which no draft had guessed. */
static double tokens_a_step(const figures *f) {
  int64_t steps = f->tokens - f->accepted;
  return f->accepted >= 0 && steps > 0 ? (double)f->tokens / (double)steps : 0;
}

static void print_row(const pass *p) {
  const figures *g = &p->figures;
  printf("%7d %10s  %8.1f %8zu", (int)p->streams, p->plain ? "off" : "on", figures_tokens_per_second(g),
         g->failed);
  print_times(&g->first);
  print_times(&g->between);
  print_times(&g->whole);
  if (tokens_a_step(g) > 0)
    printf("  %7.2f", tokens_a_step(g));
  else
    printf("  %7s", "-");
  if (p->differing >= 0)
    printf("   %.2f times as fast as off, %lld answers differ", p->gain, (long long)p->differing);
  printf("\n");
  fflush(stdout);
  if (g->error)
    fprintf(stderr, "tandem bench serve: %zu of %zu requests failed, the first: %s\n", g->failed, g->answers,
            g->error);
}

static json_t *json_of(const percentiles *p) {
  return json_pack("{s:f, s:f, s:f, s:f}", "mean", p->mean, "p50", p->p50, "p90", p->p90, "p99", p->p99);
}

static void print_json(const flags *f, const pass *p) {
  const figures *g = &p->figures;
  json_t *o = json_pack(
      "{s:s, s:s, s:i, s:b, s:I, s:I, s:I, s:f, s:f, s:f, s:o, s:o, s:o, s:o}", "url", f->whole_url, "model",
      f->given.model, "concurrency", (int)p->streams, "speculation", !p->plain, "requests",
      (json_int_t)g->answers, "failed", (json_int_t)g->failed, "output_tokens", (json_int_t)g->tokens,
      "seconds", g->seconds, "output_tokens_per_second", figures_tokens_per_second(g), "requests_per_second",
      g->seconds > 0 ? (double)(g->answers - g->failed) / g->seconds : 0, "ttft_ms", json_of(&g->first),
      "itl_ms", json_of(&g->between), "tpot_ms", json_of(&g->token), "e2el_ms", json_of(&g->whole));
  if (g->drafted >= 0) json_object_set_new(o, "draft_tokens", json_integer(g->drafted));
  if (g->accepted >= 0) json_object_set_new(o, "accepted_tokens", json_integer(g->accepted));
  if (p->differing >= 0) json_object_set_new(o, "answers_that_differ", json_integer(p->differing));
  if (p->gain > 0) json_object_set_new(o, "gain", json_real(p->gain));
  if (g->error) json_object_set_new(o, "first_error", json_string(g->error));
  json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
  printf("\n");
  fflush(stdout);
  json_decref(o);
}

static void tell(void *context, const pass *p) {
  const flags *f = context;
  if (f->given.json)
    print_json(f, p);
  else
    print_row(p);
}

/* ---- the program ---- */

static int fail(const char *name, int status, const char *why) {
  fprintf(stderr, "%s: error: %s\n", name, why);
  return status;
}

static bool all_well(const passes *p) {
  for (int32_t i = 0; i < p->count; i++)
    if (p->list[i].figures.failed || p->list[i].differing > 0) return false;
  return true;
}

static int run(const char *name, flags *f) {
  err e = {0};
  passes p;
  passes_options o = {.plain = f->given.speculation != SPECULATION_ON,
                      .drafted = f->given.speculation != SPECULATION_OFF,
                      .path = f->prompts,
                      .count = (size_t)f->given.num_prompts};
  if (!parse_streams(&o, f->given.concurrency))
    return fail(name, STATUS_USAGE, "--concurrency takes up to 8 numbers from 1 to 1024, such as 1,4,16");
  if (find_model(f, &e)) return fail(name, STATUS_FAILED, e.text);
  o.load = (load_options){.url = f->whole_url,
                          .key = f->given.api_keys,
                          .rate = (double)f->given.request_rate,
                          .seed = f->given.seed,
                          .give_up_s = f->given.time_limit};
  o.prompts = (prompts_options){.model = f->given.model,
                                .chat = f->given.endpoint == ENDPOINT_CHAT,
                                .max_tokens = f->given.max_tokens,
                                .temperature = (double)f->given.temperature,
                                .seed = f->given.from[FLAG_seed] ? (int32_t)f->given.seed : -1};
  if (!f->given.json) print_head(f);
  int code = passes_run(&p, &o, tell, f, &e);
  int status = all_well(&p) ? STATUS_OK : STATUS_FAILED;
  passes_free(&p);
  return code ? fail(name, code == ERR_ARG || code == ERR_FORMAT ? STATUS_FILE : STATUS_FAILED, e.text)
              : status;
}

int bench_serve(int argc, char **argv) {
  flags f = {.given = flag_defaults};
  f.given.max_tokens = 128;
  f.given.api_keys = getenv("OPENAI_API_KEY");
  const flag_program reader = {
      .command = COMMAND_BENCH_SERVE, .values = &f.given, .context = &f, .whole = check_whole};
  flag_read_all(&reader, argc, argv);
  curl_global_init(CURL_GLOBAL_DEFAULT);
  int status = run(argv[0], &f);
  curl_global_cleanup();
  return status;
}
