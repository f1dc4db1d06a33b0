#include "orchestrator/service/api/call.h"

#include "orchestrator/service/api/logprobs_json.h"
#include "orchestrator/service/api/usage_json.h"
#include "common/base/clock.h"
#include "common/base/json_text.h"
#include "common/base/program.h"
#include "common/base/utf8.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS 8 /* of a number in the output */

/* ---- writing ---- */

void call_reply(http_exchange *x, unsigned status, json_t *object) {
  char *text = json_text(object, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
  json_decref(object);
  if (text)
    http_reply(x, status, "application/json", text, strlen(text));
  else
    http_abort(x);
  free(text);
}

void call_refuse(http_exchange *x, const err *why, const char *param) {
  unsigned status = openai_json_status(why->code);
  if (status == 429 || status == 503) http_add_header(x, "Retry-After", "1");
  call_reply(x, status, openai_json_error(status, why->code, why->text, param));
}

/* The client gets no more: it reads too slowly, or memory is out. */
static void give_up_client(call *c) {
  http_exchange *x = c->exchange;
  c->exchange = NULL;
  http_abort(x);
}

static bool write_text(call *c, const char *text) {
  return http_stream_write(c->exchange, text, strlen(text)) == ERR_OK;
}

/* Its id is in each event; as a line of its own for clients alone that say they know such lines. */
static void write_event(call *c, json_t *object) {
  char id[STREAM_ID_TEXT_MAX + 1] = "";
  if (c->at.count > 0) {
    stream_id_format(&c->at, id);
    json_object_set_new(object, "event_id", json_string(id));
  }
  const bool has_line = c->id_lines && *id;
  char *text = json_text(object, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
  json_decref(object);
  bool ok = text && write_text(c, "data: ") && write_text(c, text) &&
            write_text(c, has_line ? "\nid: " : "") && write_text(c, has_line ? id : "") &&
            write_text(c, "\n\n") && http_stream_unsent(c->exchange) <= CALL_UNSENT_MAX;
  free(text);
  if (!ok) give_up_client(c);
}

/* The first choice of the same prompt. */
static const call_choice *first_of(const call_choice *choice) {
  return choice - choice->index % choice->owner->options.choices;
}

static const char *echo_of(const call_choice *choice) {
  const char *text = first_of(choice)->echo;
  return text ? text : "";
}

/* A chat's first event tells the role. */
static void begin_stream(call *c) {
  if (c->streaming) return;
  c->streaming = true;
  http_add_header(c->exchange, "Cache-Control", "no-cache");
  if (http_stream_begin(c->exchange, 200, "text/event-stream") != ERR_OK) {
    give_up_client(c);
    return;
  }
  for (int32_t i = 0; c->exchange && !c->goes_on && i < c->count; i++) {
    const char *before = echo_of(&c->choices[i]);
    if (c->options.chat || *before)
      write_event(c, openai_json_chunk(&c->head, i, true, before, strlen(before), NULL, NULL));
  }
}

/* Of the tokens whose text has been shown since the last event. */
static json_t *next_logprobs(call_choice *choice) {
  const call *c = choice->owner;
  if (!choice->completion.logprobs_each) return NULL;
  const char *before = echo_of(choice);
  int32_t first = choice->logprobs_given, end = logprobs_json_shown(&choice->completion, first);
  choice->logprobs_given = end;
  if (first == end) return NULL;
  return logprobs_json(&choice->completion, c->options.chat, utf8_characters(before, strlen(before)), first,
                       end);
}

static void finish_with_error(call *c, const err *why);

/* Does the answer begin with what the client has of it? Otherwise its stream ends with an error. */
static bool begins_alike(call_choice *choice) {
  const completion *a = &choice->completion;
  const stream_offset *from = &choice->from;
  err why = {0};
  if (choice->same || !choice->owner->goes_on) return true;
  choice->same = a->shown >= from->bytes && from->tokens <= a->fed &&
                 stream_id_hash(a->text ? a->text : "", from->bytes) == from->hash;
  if (choice->same) return true;
  err_set(&why, ERR_ARG,
          "the stream cannot go on, because the answer begins in another way now: the request, the model or "
          "the server's flags have changed since it was cut; ask without Last-Event-ID");
  finish_with_error(choice->owner, &why);
  return false;
}

/* An event with the text from `begin` on to all that has been shown. */
static void write_choice(call_choice *choice, size_t begin) {
  call *c = choice->owner;
  const completion *a = &choice->completion;
  json_t *logprobs = next_logprobs(choice);
  if (c->at.count > 0)
    c->at.offsets[choice->index] =
        (stream_offset){a->shown, choice->logprobs_given, stream_id_hash(a->text, a->shown), false};
  write_event(c, openai_json_chunk(&c->head, choice->index, false, a->text + begin, a->shown - begin, NULL,
                                   logprobs));
}

static void on_text(void *context, const char *text, size_t size, bool accepted) {
  call_choice *choice = context;
  call *c = choice->owner;
  const size_t end = choice->completion.shown, begin = end - size;
  (void)text, (void)accepted;
  if (!c->exchange || !c->options.stream || end <= choice->from.bytes || !begins_alike(choice)) return;
  begin_stream(c);
  if (c->exchange) write_choice(choice, begin > choice->from.bytes ? begin : choice->from.bytes);
}

/* ---- the end ---- */

static json_t *usage_of(const call *c) {
  completion *list[CALL_ANSWERS_MAX];
  for (int32_t i = 0; i < c->count; i++) list[i] = (completion *)&c->choices[i].completion;
  return usage_json(list, c->count, c->options.choices);
}

static json_t *metrics_of(const call *c) {
  completion *first = (completion *)&c->choices[0].completion;
  return usage_json_metrics(&first, c->count);
}

static void finish_stream(call *c) {
  if (c->options.include_usage) write_event(c, openai_json_usage_chunk(&c->head, usage_of(c), metrics_of(c)));
  if (!c->exchange) return;
  http_stream_write(c->exchange, "data: [DONE]\n\n", 14);
  http_stream_end(c->exchange);
  c->exchange = NULL;
}

static void finish_whole(call *c) {
  json_t *choices = json_array();
  http_exchange *x = c->exchange;
  for (int32_t i = 0; i < c->count; i++)
    json_array_append_new(
        choices, openai_json_choice(&c->head, i, echo_of(&c->choices[i]), &c->choices[i].completion));
  c->exchange = NULL;
  call_reply(x, 200, openai_json_whole(&c->head, choices, usage_of(c), metrics_of(c)));
}

/* An error ends the whole call: whoever asked for several answers gets all of them or none. */
static void finish_with_error(call *c, const err *why) {
  http_exchange *x = c->exchange;
  unsigned status = openai_json_status(why->code);
  if (!x) return;
  if (!c->streaming) {
    c->exchange = NULL;
    call_refuse(x, why, NULL);
    return;
  }
  write_event(c, openai_json_error(status, why->code, why->text, NULL));
  if (!c->exchange) return;
  http_stream_end(c->exchange);
  c->exchange = NULL;
}

static const char *finish_of(const completion *c) {
  return c->finish == WIRE_FINISH_LENGTH      ? "length"
         : c->finish == WIRE_FINISH_CANCELLED ? "cancelled"
         : c->finish == WIRE_FINISH_ERROR     ? "error"
                                              : "stop";
}

static void log_end(const call_choice *choice, const completion *ended) {
  const call *c = choice->owner;
  log_line(c->log, LOG_INFO, "request %s: session %016" PRIx64 ": choice %d ended: %s, %d tokens after %zu",
           c->request_id, ended->id, choice->index, finish_of(ended), ended->count, ended->prompt.count);
}

static void write_last(call_choice *choice, const completion *ended) {
  call *c = choice->owner;
  const char *finish = ended->finish == WIRE_FINISH_LENGTH ? "length" : "stop";
  json_t *logprobs = next_logprobs(choice);
  if (c->at.count > 0) c->at.offsets[choice->index].over = true;
  write_event(c, openai_json_last(&c->head, choice->index, finish, logprobs, ended));
}

static void on_end(void *context, const completion *ended) {
  call_choice *choice = context;
  call *c = choice->owner;
  log_end(choice, ended);
  choice->over = true;
  c->left--;
  if (ended->id) metrics_add(c->metrics, ended, ended->start_us - c->came_us);
  if (ended->finish == WIRE_FINISH_ERROR) finish_with_error(c, &ended->trouble);
  if (!c->exchange) return;
  if (!c->options.stream) {
    if (c->left == 0) finish_whole(c);
    return;
  }
  if (!begins_alike(choice)) return;
  begin_stream(c);
  if (c->exchange && !choice->from.over) write_last(choice, ended);
  if (c->exchange && c->left == 0) finish_stream(c);
}

/* ---- its life ---- */

static int name_it(call *c, err *e) {
  uint64_t id[2];
  int rc = program_random(id, sizeof id, e);
  snprintf(c->id, sizeof c->id, "%s-%016" PRIx64 "%016" PRIx64, c->options.chat ? "chatcmpl" : "cmpl", id[0],
           id[1]);
  return rc;
}

/* The first choice of a prompt gets its ids, and the others copy them when they begin. */
static int take_prompt(call *c, int32_t index, const text_model *m, err *e) {
  call_choice *choice = &c->choices[index * c->options.choices];
  const request *r = &c->options.request;
  call_error why = {0};
  int rc = call_options_set_prompt(&c->options, index, m, &why);
  if (rc) *e = why.why;
  if (rc == ERR_OK && c->options.echo && r->prompt_kind == REQUEST_TEXT && !(choice->echo = strdup(r->text)))
    return err_set(e, ERR_NOMEM, "out of memory for a prompt");
  return rc ? rc : completion_prepare(&choice->completion, r, e);
}

static void free_choices(call *c) {
  for (int32_t i = 0; i < c->count; i++) {
    completion_fini(&c->choices[i].completion);
    free(c->choices[i].echo);
  }
}

static void begin_offsets(call *c) {
  c->at = (stream_id){.created = c->head.created, .seed = c->options.request.sampling.seed};
  snprintf(c->at.name, sizeof c->at.name, "%s", c->id);
  if (c->count <= STREAM_ID_CHOICES_MAX) c->at.count = c->count;
  for (int32_t i = 0; i < c->at.count; i++) c->at.offsets[i].hash = stream_id_hash("", 0);
}

int call_new(call **out, call_options *options, const text_model *m, const char *model_name, metrics *counted,
             err *e) {
  int32_t n = options->choices * options->prompt_count;
  call *c = calloc(1, sizeof *c + (size_t)n * sizeof *c->choices);
  if (!c) return err_set(e, ERR_NOMEM, "out of memory for a request");
  c->options = *options;
  c->metrics = counted;
  c->came_us = clock_us();
  c->count = c->left = n;
  for (int32_t i = 0; i < n; i++) {
    const completion_sink sink = {.on_text = on_text, .on_end = on_end, .context = &c->choices[i]};
    c->choices[i].owner = c;
    c->choices[i].index = i;
    completion_init(&c->choices[i].completion, m, &sink);
  }
  int rc = name_it(c, e);
  for (int32_t i = 0; rc == ERR_OK && i < options->prompt_count; i++) rc = take_prompt(c, i, m, e);
  c->options.prompts = NULL;
  if (rc) {
    *options = c->options; /* its request may have another prompt now */
    free_choices(c);
    free(c);
    return rc;
  }
  c->head = (openai_head){c->id, model_name, clock_wall_us() / 1000000, options->chat};
  begin_offsets(c);
  *out = c;
  return ERR_OK;
}

int call_go_on(call *c, const char *last_event_id, err *e) {
  request *r = &c->options.request;
  stream_id from;
  int rc = stream_id_parse(&from, last_event_id, e);
  if (rc) return rc;
  const size_t kind = strcspn(from.name, "-");
  if (from.count != c->at.count || kind != strcspn(c->id, "-") || strncmp(from.name, c->id, kind) != 0)
    return err_set(e, ERR_ARG, "Last-Event-ID is of another request: send the body whose stream was cut");
  if (r->seed_given && r->sampling.seed != from.seed)
    return err_set(e, ERR_ARG, "Last-Event-ID is of an answer with another seed than the body's");
  if (r->partial.mode == WIRE_PARTIAL_LOSSY)
    return err_set(e, ERR_ARG, "a lossy answer may be another one each time, so its stream cannot go on");
  c->at = from;
  c->goes_on = true;
  c->head.created = from.created;
  r->sampling.seed = from.seed;
  snprintf(c->id, sizeof c->id, "%s", from.name);
  for (int32_t i = 0; i < c->count; i++) {
    c->choices[i].from = from.offsets[i];
    c->choices[i].logprobs_given = from.offsets[i].tokens;
  }
  return ERR_OK;
}

void call_attach(call *c, http_exchange *x, const logger *log) {
  const char *accept = http_header(x, "Accept");
  c->id_lines = accept && strstr(accept, "text/event-stream");
  c->exchange = x;
  c->log = log;
  snprintf(c->request_id, sizeof c->request_id, "%s", request_id_of(x));
  http_set_user(x, c);
}

void call_free(call *c) {
  free_choices(c);
  request_fini(&c->options.request);
  free(c);
}

/* A choice whose completion never began. */
static void end_choice(call_choice *choice, service *s) {
  if (choice->over) return;
  if (!choice->begun) choice->owner->begun++;
  choice->begun = true;
  completion_cancel(&choice->completion, s);
}

static void end_all(call *c, service *s) {
  for (int32_t i = 0; i < c->count; i++) end_choice(&c->choices[i], s);
}

static int copy_prompt(tokenizer_ids *to, const tokenizer_ids *from, err *e) {
  int rc = ERR_OK;
  for (size_t i = to->count; rc == ERR_OK && i < from->count; i++) rc = tokenizer_ids_add(to, from->ids[i]);
  return rc ? err_set(e, rc, "out of memory for a prompt") : ERR_OK;
}

/* Each choice of a prompt has random numbers of its own: the seed of the first is the request's. */
void call_begin_next(call *c, service *s) {
  call_choice *choice = &c->choices[c->begun++];
  err e = {0};
  const call_choice *first = first_of(choice);
  request r = c->options.request; /* shares what the request owns, for this call */
  r.sampling.seed += (uint64_t)(choice - first);
  choice->begun = true;
  choice->completion.came_us = c->came_us;
  int rc = copy_prompt(&choice->completion.prompt, &first->completion.prompt, &e);
  if (rc == ERR_OK) rc = completion_begin(&choice->completion, s, &r, &e);
  if (rc == ERR_OK) {
    log_line(c->log, LOG_INFO, "request %s: session %016" PRIx64 ": choice %d of %s begins", c->request_id,
             choice->completion.id, choice->index, c->id);
    return;
  }
  finish_with_error(c, &e);
  end_all(c, s);
}

bool call_has_begun(const call *c) {
  return c->begun == c->count;
}

int32_t call_running(const call *c) {
  int32_t running = 0;
  for (int32_t i = 0; i < c->count; i++) running += c->choices[i].begun && !c->choices[i].over;
  return running;
}

void call_update(call *c, service *s) {
  for (int32_t i = 0; i < c->begun; i++)
    if (!c->choices[i].over) completion_update(&c->choices[i].completion, s);
  if (!c->exchange) end_all(c, s);
}

void call_drop(call *c, service *s) {
  c->exchange = NULL;
  end_all(c, s);
}

void call_fail(call *c, service *s, const err *why) {
  finish_with_error(c, why);
  for (int32_t i = 0; i < c->count; i++) {
    call_choice *choice = &c->choices[i];
    if (!choice->over) completion_fail(&choice->completion, s, why);
  }
}

bool call_is_over(const call *c) {
  return c->left == 0;
}
