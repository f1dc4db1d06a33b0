#include "bench/serve/load.h"

#include "common/base/clock.h"
#include "common/base/rng.h"
#include <curl/curl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_MS_MAX 1000

typedef struct load {
  const load_options *options;
  char *const *bodies;
  size_t count, begun, ended;
  load_answer *answers;
  CURLM *multi;
  CURL *streams[LOAD_STREAMS_MAX]; /* kept open from request to request */
  bool busy[LOAD_STREAMS_MAX];
  size_t nth[LOAD_STREAMS_MAX]; /* the request of a busy one */
  struct curl_slist *headers;
  uint64_t next_us; /* when the next request may begin */
} load;

/* ---- one request ---- */

static size_t on_body(char *bytes, size_t one, size_t size, void *context) {
  load_answer *a = context;
  (void)one;
  int code = answer_stream_take(&a->stream, bytes, size, clock_us());
  if (!code) return size;
  snprintf(a->stream.error, sizeof a->stream.error, "the answer is not what OpenAI's API gives: %s",
           err_name(code));
  return 0;
}

static void set_common(CURL *c, const char *url, struct curl_slist *headers, int32_t give_up_s) {
  curl_easy_setopt(c, CURLOPT_URL, url);
  curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(c, CURLOPT_TCP_NODELAY, 1L);
  curl_easy_setopt(c, CURLOPT_TIMEOUT, (long)give_up_s);
}

static struct curl_slist *make_headers(const char *key) {
  struct curl_slist *list = curl_slist_append(NULL, "Content-Type: application/json");
  char *line;
  if (!list || !key) return list;
  if (asprintf(&line, "Authorization: Bearer %s", key) < 0) return list;
  struct curl_slist *longer = curl_slist_append(list, line);
  free(line);
  return longer ? longer : list;
}

static void begin(load *l, int32_t stream) {
  size_t nth = l->begun++;
  load_answer *a = &l->answers[nth];
  CURL *c = l->streams[stream];
  l->busy[stream] = true;
  l->nth[stream] = nth;
  a->begin_us = clock_us();
  curl_easy_setopt(c, CURLOPT_POSTFIELDS, l->bodies[nth]);
  curl_easy_setopt(c, CURLOPT_WRITEDATA, a);
  curl_easy_setopt(c, CURLOPT_PRIVATE, (void *)(uintptr_t)stream);
  curl_multi_add_handle(l->multi, c);
}

static void say_why(answer_stream *s, CURL *c, CURLcode result) {
  long status = 0;
  curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
  if (s->error[0]) return;
  if (result)
    snprintf(s->error, sizeof s->error, "%s", curl_easy_strerror(result));
  else if (status != 200)
    snprintf(s->error, sizeof s->error, "the server answers with status %ld", status);
  else if (!s->done)
    snprintf(s->error, sizeof s->error, "the answer ended without [DONE]");
}

static void end(load *l, CURL *c, CURLcode result) {
  void *private;
  curl_easy_getinfo(c, CURLINFO_PRIVATE, (char **)&private);
  int32_t stream = (int32_t)(uintptr_t) private;
  load_answer *a = &l->answers[l->nth[stream]];
  a->end_us = clock_us();
  answer_stream_end(&a->stream, a->end_us);
  say_why(&a->stream, c, result);
  curl_multi_remove_handle(l->multi, c);
  l->busy[stream] = false;
  l->ended++;
}

/* ---- all of them ---- */

/* The gaps of a Poisson process are exponential. */
static void draw_next(load *l) {
  if (l->options->rate <= 0) return;
  uint32_t counter[4] = {(uint32_t)l->begun},
           key[2] = {(uint32_t)l->options->seed, (uint32_t)(l->options->seed >> 32)};
  float unit = philox_unit(philox4x32(counter, key).lane[0]);
  l->next_us += (uint64_t)(-log((double)unit) / l->options->rate * 1e6);
}

static void begin_all(load *l) {
  for (int32_t i = 0; i < l->options->streams && l->begun < l->count; i++) {
    if (l->busy[i]) continue;
    if (l->options->rate > 0 && clock_us() < l->next_us) return;
    begin(l, i);
    draw_next(l);
  }
}

static int wait_ms(const load *l) {
  uint64_t now = clock_us();
  if (l->options->rate <= 0 || l->begun == l->count || l->begun - l->ended == (size_t)l->options->streams)
    return POLL_MS_MAX;
  uint64_t ms = l->next_us > now ? (l->next_us - now + 999) / 1000 : 0;
  return ms < POLL_MS_MAX ? (int)ms : POLL_MS_MAX;
}

/* Waits only where no request has ended, because another may begin in its place. */
static bool step(load *l) {
  int running, left;
  size_t before = l->ended;
  begin_all(l);
  if (curl_multi_perform(l->multi, &running)) return false;
  for (CURLMsg *m; (m = curl_multi_info_read(l->multi, &left));)
    if (m->msg == CURLMSG_DONE) end(l, m->easy_handle, m->data.result);
  return l->ended > before || curl_multi_poll(l->multi, NULL, 0, wait_ms(l), NULL) == CURLM_OK;
}

static bool open_streams(load *l) {
  const load_options *o = l->options;
  l->multi = curl_multi_init();
  l->headers = make_headers(o->key);
  for (int32_t i = 0; i < o->streams && l->multi && l->headers; i++) {
    CURL *c = l->streams[i] = curl_easy_init();
    if (!c) return false;
    set_common(c, o->url, l->headers, o->give_up_s);
    curl_easy_setopt(c, CURLOPT_POST, 1L);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
  }
  return l->multi && l->headers;
}

static void close_streams(load *l) {
  for (int32_t i = 0; i < l->options->streams; i++) {
    if (l->busy[i]) curl_multi_remove_handle(l->multi, l->streams[i]);
    curl_easy_cleanup(l->streams[i]);
  }
  curl_multi_cleanup(l->multi);
  curl_slist_free_all(l->headers);
}

int load_run(const load_options *o, char *const *bodies, size_t count, load_answer *answers, err *e) {
  load *l = calloc(1, sizeof *l);
  for (size_t i = 0; i < count; i++) answer_stream_init(&answers[i].stream);
  if (!l) return err_set(e, ERR_NOMEM, "out of memory");
  *l = (load){.options = o, .bodies = bodies, .count = count, .answers = answers, .next_us = clock_us()};
  bool well = open_streams(l);
  while (well && l->ended < count) well = step(l);
  close_streams(l);
  free(l);
  return well ? ERR_OK : err_set(e, ERR_IO, "libcurl cannot go on");
}

/* ---- GET ---- */

static size_t on_get(char *bytes, size_t one, size_t size, void *context) {
  FILE *to = context;
  return fwrite(bytes, one, size, to);
}

int load_get(const char *url, const char *key, char **out, err *e) {
  size_t size;
  *out = NULL;
  CURL *c = curl_easy_init();
  struct curl_slist *headers = make_headers(key);
  FILE *to = open_memstream(out, &size);
  CURLcode result = CURLE_OUT_OF_MEMORY;
  if (c && headers && to) {
    set_common(c, url, headers, 30);
    curl_easy_setopt(c, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_get);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, to);
    result = curl_easy_perform(c);
  }
  if (to) fclose(to);
  curl_easy_cleanup(c);
  curl_slist_free_all(headers);
  if (result == CURLE_OK) return ERR_OK;
  free(*out);
  *out = NULL;
  return err_set(e, ERR_IO, "%s: %s", url, curl_easy_strerror(result));
}
