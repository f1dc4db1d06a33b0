#include "bench/serve/serve.h"

#include "bench/serve/passes.h"
#include "common/base/program.h"
#include "common/base/program_flags.h"
#include <curl/curl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define URL_MAX         2048
#define MODEL_MAX       256
#define REQUESTS_MAX    1000000
#define RATE_MAX        1e6f
#define TOKENS_MAX      (1 << 24)
#define TEMPERATURE_MAX 2.0f
#define TIME_LIMIT_MAX  86400

typedef enum { ENDPOINT_CHAT, ENDPOINT_COMPLETIONS } endpoint;
typedef enum { SPECULATION_ON, SPECULATION_OFF, SPECULATION_BOTH } speculation;

static const char *const endpoint_words[] = {"chat", "completions"};
static const char *const speculation_words[] = {"on", "off", "both"};

typedef struct flags {
  const char *url, *prompts, *streams, *model, *key;
  int32_t count, max_tokens, seed, time_limit;
  float rate, temperature;
  endpoint endpoint;
  speculation speculation;
  bool json;
  char whole_url[URL_MAX], found_model[MODEL_MAX];
} flags;

/* ---- flags ---- */

enum {
  KEY_STREAMS = 256,
  KEY_COUNT,
  KEY_RATE,
  KEY_MAX_TOKENS,
  KEY_TEMP,
  KEY_SEED,
  KEY_ENDPOINT,
  KEY_SPECULATION,
  KEY_API_KEY,
  KEY_TIME_LIMIT,
  KEY_JSON
};

static const struct argp_option option_table[] = {
    {"concurrency", KEY_STREAMS, "N,N,...", 0,
     "requests at a time, up to 8 numbers, one load each (default 1,4,16)", 0},
    {"num-prompts", KEY_COUNT, "N", 0,
     "requests in each load; prompts are used again (default: each prompt once)", 0},
    {"request-rate", KEY_RATE, "R", 0,
     "begin R requests a second on average, at random moments (default 0: at once)", 0},
    {"max-tokens", KEY_MAX_TOKENS, "N", 0, "most tokens of an answer (default 128)", 0},
    {"temp", KEY_TEMP, "T", 0, "temperature (default 0: always the likeliest token)", 0},
    {"seed", KEY_SEED, "N", 0, "of the random numbers, sent with each request", 0},
    {"endpoint", KEY_ENDPOINT, "NAME", 0, "chat (default) or completions", 0},
    {"speculation", KEY_SPECULATION, "MODE", 0,
     "on (default: as the server does by itself), off, or both, which compares them; off sends tandem's own "
     "field, which other "
     "servers ignore",
     0},
    {"model", 'm', "NAME", 0, "that requests name (default: the first that the server lists)", 0},
    {"api-key", KEY_API_KEY, "KEY", 0, "sent as a bearer token (default: OPENAI_API_KEY of the environment)",
     0},
    {"time-limit", KEY_TIME_LIMIT, "S", 0, "seconds after which a request has failed (default 600)", 0},
    {"json", KEY_JSON, 0, 0, "one JSON object for each load instead of the table", 0},
    {0}};

static const program_flag flag_table[] = {
    PROGRAM_FLAG_TEXT(KEY_STREAMS, flags, streams),
    PROGRAM_FLAG_INT(KEY_COUNT, flags, count, "--num-prompts", 1, REQUESTS_MAX),
    PROGRAM_FLAG_FLOAT(KEY_RATE, flags, rate, "--request-rate", 0, RATE_MAX),
    PROGRAM_FLAG_INT(KEY_MAX_TOKENS, flags, max_tokens, "--max-tokens", 1, TOKENS_MAX),
    PROGRAM_FLAG_FLOAT(KEY_TEMP, flags, temperature, "--temp", 0, TEMPERATURE_MAX),
    PROGRAM_FLAG_INT(KEY_SEED, flags, seed, "--seed", 0, INT32_MAX),
    PROGRAM_FLAG_CHOICE(KEY_ENDPOINT, flags, endpoint, "--endpoint", endpoint_words),
    PROGRAM_FLAG_CHOICE(KEY_SPECULATION, flags, speculation, "--speculation", speculation_words),
    PROGRAM_FLAG_TEXT('m', flags, model),
    PROGRAM_FLAG_TEXT(KEY_API_KEY, flags, key),
    PROGRAM_FLAG_INT(KEY_TIME_LIMIT, flags, time_limit, "--time-limit", 1, TIME_LIMIT_MAX),
    PROGRAM_FLAG_SWITCH(KEY_JSON, flags, json),
};

static error_t take_argument(flags *f, const char *text, struct argp_state *state) {
  if (!f->url)
    f->url = text;
  else if (!f->prompts)
    f->prompts = text;
  else
    argp_error(state, "unexpected argument '%s'", text);
  return 0;
}

static error_t parse(int key, char *text, struct argp_state *state) {
  flags *f = state->input;
  if (key == ARGP_KEY_ARG) return take_argument(f, text, state);
  if (key != ARGP_KEY_END)
    return program_take_flag(flag_table, sizeof flag_table / sizeof *flag_table, key, text, state);
  if (!f->url) argp_error(state, "no server: give its address, such as http://127.0.0.1:8080");
  if (!f->prompts) argp_error(state, "no prompts: give a file of JSON lines with a \"prompt\" each");
  return 0;
}

static const char doc[] =
    "A load on a server that speaks OpenAI's API (tandem serve, llama-server, vLLM): tokens a second, and "
    "percentiles of the time "
    "to the first token, between tokens, and of whole answers.\v"
    "A line of PROMPTS is an object with one of \"messages\", \"turns\" (the first is asked) and \"prompt\", "
    "with --endpoint "
    "completions also \"prompt_ids\"; other keys are ignored. A load after the first one finds its prompts "
    "in the server's cache. "
    "Requests that fail, and answers that differ with and without a draft, give exit status 1.";

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
      !make_url(f->whole_url, f->url, f->endpoint == ENDPOINT_CHAT ? "chat/completions" : "completions"))
    return err_set(e, ERR_ARG, "the address is too long");
  int code = load_get(url, f->key, &body, e);
  if (code) return code;
  json_t *o = json_loads(body, 0, NULL);
  const char *id = json_string_value(json_object_get(json_array_get(json_object_get(o, "data"), 0), "id"));
  snprintf(f->found_model, sizeof f->found_model, "%s", id ? id : "default");
  if (!f->model) f->model = f->found_model;
  json_decref(o);
  free(body);
  return ERR_OK;
}

/* ---- telling ---- */

static void print_head(const flags *f) {
  printf("server   %s, model %s\n", f->whole_url, f->model);
  printf("load     %s, answers of at most %d tokens, temperature %g\n\n", f->prompts, (int)f->max_tokens,
         (double)f->temperature);
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
      f->model, "concurrency", (int)p->streams, "speculation", !p->plain, "requests", (json_int_t)g->answers,
      "failed", (json_int_t)g->failed, "output_tokens", (json_int_t)g->tokens, "seconds", g->seconds,
      "output_tokens_per_second", figures_tokens_per_second(g), "requests_per_second",
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
  if (f->json)
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
  passes_options o = {.plain = f->speculation != SPECULATION_ON,
                      .drafted = f->speculation != SPECULATION_OFF,
                      .path = f->prompts,
                      .count = (size_t)f->count};
  if (!parse_streams(&o, f->streams))
    return fail(name, PROGRAM_EXIT_USAGE,
                "--concurrency takes up to 8 numbers from 1 to 1024, such as 1,4,16");
  if (find_model(f, &e)) return fail(name, PROGRAM_EXIT_FAILED, e.text);
  o.load = (load_options){.url = f->whole_url,
                          .key = f->key,
                          .rate = (double)f->rate,
                          .seed = (uint64_t)f->seed,
                          .give_up_s = f->time_limit};
  o.prompts = (prompts_options){.model = f->model,
                                .chat = f->endpoint == ENDPOINT_CHAT,
                                .max_tokens = f->max_tokens,
                                .temperature = (double)f->temperature,
                                .seed = f->seed};
  if (!f->json) print_head(f);
  int code = passes_run(&p, &o, tell, f, &e);
  int status = all_well(&p) ? PROGRAM_EXIT_OK : PROGRAM_EXIT_FAILED;
  passes_free(&p);
  return code ? fail(name, code == ERR_ARG || code == ERR_FORMAT ? PROGRAM_EXIT_FILE : PROGRAM_EXIT_FAILED,
                     e.text)
              : status;
}

int bench_serve(int argc, char **argv) {
  flags f = {
      .streams = "1,4,16", .max_tokens = 128, .seed = -1, .time_limit = 600, .key = getenv("OPENAI_API_KEY")};
  const struct argp parser = {
      .options = option_table, .parser = parse, .args_doc = "URL PROMPTS.jsonl", .doc = doc};
  argp_err_exit_status = PROGRAM_EXIT_USAGE;
  program_parse_flags(&parser, argc, argv, &f);
  curl_global_init(CURL_GLOBAL_DEFAULT);
  int status = run(argv[0], &f);
  curl_global_cleanup();
  return status;
}
