#include "orchestrator/operate/server_link.h"

#include <curl/curl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIME_LIMIT_S 10
#define RESPONSE_MAX (16u << 20)

struct server_link {
  CURL *curl;
  struct curl_slist *headers;
  char *url, why[CURL_ERROR_SIZE];
  char *text; /* [size], the response so far, with a NUL behind it */
  size_t size;
};

static size_t on_body(char *bytes, size_t one, size_t count, void *context) {
  server_link *l = context;
  char *grown = l->size + count < RESPONSE_MAX ? realloc(l->text, l->size + count + 1) : NULL;
  (void)one;
  if (!grown) return 0;
  l->text = grown;
  memcpy(l->text + l->size, bytes, count);
  l->size += count;
  l->text[l->size] = 0;
  return count;
}

static bool add_header(server_link *l, const char *begin, const char *rest) {
  char *line;
  if (asprintf(&line, "%s%s", begin, rest) < 0) return false;
  struct curl_slist *longer = curl_slist_append(l->headers, line);
  free(line);
  if (longer) l->headers = longer;
  return longer != NULL;
}

int server_link_open(server_link **out, const char *url, const char *key, err *e) {
  server_link *l = *out = calloc(1, sizeof *l);
  size_t size = strlen(url);
  while (size > 0 && url[size - 1] == '/') size--;
  bool ok = l && (l->curl = curl_easy_init()) && (l->url = strndup(url, size)) &&
            add_header(l, "Content-Type: application/json", "") &&
            (!key || add_header(l, "Authorization: Bearer ", key));
  if (!ok) return err_set(e, ERR_NOMEM, "out of memory");
  curl_easy_setopt(l->curl, CURLOPT_HTTPHEADER, l->headers);
  curl_easy_setopt(l->curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(l->curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(l->curl, CURLOPT_TIMEOUT, (long)TIME_LIMIT_S);
  curl_easy_setopt(l->curl, CURLOPT_ERRORBUFFER, l->why);
  curl_easy_setopt(l->curl, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(l->curl, CURLOPT_WRITEDATA, l);
  return ERR_OK;
}

void server_link_close(server_link *l) {
  if (!l) return;
  curl_easy_cleanup(l->curl);
  curl_slist_free_all(l->headers);
  free(l->url);
  free(l->text);
  free(l);
}

/* What the server says in an error of OpenAI's form, or only its status. */
static int refusal(const server_link *l, long status, err *e) {
  json_t *body = l->text ? json_loads(l->text, 0, NULL) : NULL;
  const char *why = json_string_value(json_object_get(json_object_get(body, "error"), "message"));
  if (why)
    err_set(e, ERR_IO, "%s refuses: %s", l->url, why);
  else
    err_set(e, ERR_IO, "%s answers with status %ld, as `tandem serve' of this version does not", l->url,
            status);
  json_decref(body);
  return ERR_IO;
}

int server_link_ask(server_link *l, const char *path, const char *body, char **text, err *e) {
  char *whole;
  long status = 0;
  if (asprintf(&whole, "%s%s", l->url, path) < 0) return err_set(e, ERR_NOMEM, "out of memory");
  free(l->text);
  l->text = NULL;
  l->size = 0;
  curl_easy_setopt(l->curl, CURLOPT_URL, whole);
  curl_easy_setopt(l->curl, body ? CURLOPT_POST : CURLOPT_HTTPGET, 1L);
  if (body) curl_easy_setopt(l->curl, CURLOPT_POSTFIELDS, body);
  CURLcode rc = curl_easy_perform(l->curl);
  free(whole);
  if (rc)
    return err_set(e, ERR_GONE, "nobody answers at %s (%s): start `tandem serve', or give another URL",
                   l->url, l->why[0] ? l->why : curl_easy_strerror(rc));
  curl_easy_getinfo(l->curl, CURLINFO_RESPONSE_CODE, &status);
  if (status != 200) return refusal(l, status, e);
  *text = l->text ? l->text : strdup("");
  l->text = NULL;
  return *text ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory");
}

int server_link_ask_json(server_link *l, const char *path, const char *body, json_t **out, err *e) {
  char *text;
  int rc = server_link_ask(l, path, body, &text, e);
  if (rc) return rc;
  *out = json_loads(text, 0, NULL);
  free(text);
  return *out ? ERR_OK : err_set(e, ERR_FORMAT, "%s%s is no JSON: is that `tandem serve'?", l->url, path);
}
