/* tandem run without a prompt, on a terminal: a conversation, one line a message. */
#include "orchestrator/commands.h"
#include "orchestrator/lines.h"
#include "orchestrator/output.h"
#include "orchestrator/result.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES (1 << 16)
#define PROMPT         "> "

typedef struct turn {
  const char *role;
  char *text;
  size_t size;
} turn;

typedef struct chat {
  flags flags;
  text_model model;
  int32_t context;
  logger log;
  pair *pair;
  answer answer;
  output out;
  uv_poll_t keyboard;
  turn *turns; /* [count]: the system message first, if there is one */
  int32_t count, capacity;
  char line[LINE_MAX_BYTES];
  size_t line_size;
  bool asking, ready, over; /* asking: an answer is under way */
  int status;
} chat;

static void say(chat *c, const char *text, size_t size) {
  if (output_add(&c->out, text, size)) c->status = STATUS_FAILED;
}

static void ask_line(chat *c) {
  say(c, PROMPT, sizeof PROMPT - 1);
}

static void leave(chat *c, int code) {
  if (c->over) return;
  c->over = true;
  c->status = c->status ? c->status : code;
  uv_poll_stop(&c->keyboard);
  pair_finish(c->pair);
}

/* ---- the conversation ---- */

static int add_turn(chat *c, const char *role, const char *text, size_t size) {
  if (c->count == c->capacity) {
    int32_t capacity = c->capacity ? 2 * c->capacity : 16;
    turn *more = realloc(c->turns, (size_t)capacity * sizeof *more);
    if (!more) return ERR_NOMEM;
    c->turns = more;
    c->capacity = capacity;
  }
  turn t = {role, malloc(size + 1), size};
  if (!t.text) return ERR_NOMEM;
  memcpy(t.text, text, size);
  t.text[size] = 0;
  c->turns[c->count++] = t;
  return ERR_OK;
}

static void drop_turns(chat *c, int32_t keep) {
  while (c->count > keep) free(c->turns[--c->count].text);
}

static int32_t system_turns(const chat *c) {
  return c->flags.system ? 1 : 0;
}

static int render(chat *c, err *e) {
  chat_message *messages = calloc((size_t)c->count, sizeof *messages);
  if (!messages) return err_set(e, ERR_NOMEM, "out of memory");
  for (int32_t i = 0; i < c->count; i++)
    messages[i] = (chat_message){.role = c->turns[i].role, .content = c->turns[i].text, .size = c->turns[i].size};
  int rc = text_model_messages(&c->model, messages, c->count, &c->answer.prompt, e);
  free(messages);
  if (rc == ERR_OK) rc = text_model_check(&c->model, c->answer.prompt.ids, c->answer.prompt.count, c->context, e);
  return rc;
}

static void fresh_answer(chat *c) {
  answer_fini(&c->answer);
  answer_init(&c->answer, &c->model);
}

/* The message and all before it. What cannot be sent is not part of the conversation. */
static void send_line(chat *c, const char *text, size_t size) {
  err e = {0};
  fresh_answer(c);
  int rc = add_turn(c, "user", text, size);
  if (rc) err_set(&e, rc, "out of memory");
  if (rc == ERR_OK) rc = render(c, &e);
  command_warn_dropped(c->answer.prompt.dropped_bytes);
  c->answer.title = c->count > 0 ? c->turns[c->count - 1].text : NULL;
  if (rc == ERR_OK) rc = answer_begin(&c->answer, c->pair, &c->flags, c->context, &e);
  c->asking = rc == ERR_OK;
  if (c->asking) return;
  if (c->count > system_turns(c)) drop_turns(c, c->count - 1);
  command_error(STATUS_INPUT, "%s (/new begins anew)", e.text);
  ask_line(c);
}

static void end_answer(chat *c) {
  char line[RESULT_FIGURES_MAX];
  c->asking = false;
  say(c, "\n", 1);
  if (c->answer.trouble.code) {
    command_error(STATUS_WORKER, "%s", c->answer.trouble.text);
    leave(c, STATUS_WORKER);
    return;
  }
  result_figures(&c->answer, line);
  if (c->flags.verbose) fprintf(stderr, "tandem: %s\n", line);
  if (add_turn(c, "assistant", c->answer.text, c->answer.shown)) leave(c, STATUS_FAILED);
  ask_line(c);
}

static void take_line(chat *c, const char *text, size_t size) {
  static const char anew[] = "/new";
  while (size > 0 && strchr(" \t\r", text[size - 1])) size--;
  if (size == 0) {
    ask_line(c);
  } else if (size == sizeof anew - 1 && memcmp(text, anew, size) == 0) {
    drop_turns(c, system_turns(c));
    ask_line(c);
  } else {
    send_line(c, text, size);
  }
}

/* Lines that were typed during an answer wait for its end. */
static void take_lines(chat *c) {
  char *end;
  while (!c->over && c->ready && !c->asking && (end = memchr(c->line, '\n', c->line_size))) {
    size_t size = (size_t)(end - c->line);
    char *text = strndup(c->line, size);
    memmove(c->line, end + 1, c->line_size -= size + 1);
    if (text) take_line(c, text, strlen(text));
    else leave(c, STATUS_FAILED);
    free(text);
  }
}

static void on_keyboard(uv_poll_t *handle, int failed, int events) {
  chat *c = handle->data;
  (void)failed, (void)events; /* `read` tells */
  if (c->line_size == sizeof c->line) {
    command_error(STATUS_INPUT, "a line has more than %d bytes: it is left out", LINE_MAX_BYTES);
    c->line_size = 0;
  }
  ssize_t n = read(STDIN_FILENO, c->line + c->line_size, sizeof c->line - c->line_size);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) { /* Ctrl-D, or the terminal is gone */
    if (c->asking) pair_cancel(c->pair, c->answer.session);
    say(c, "\n", 1);
    leave(c, STATUS_OK);
    return;
  }
  c->line_size += (size_t)n;
  take_lines(c);
}

/* ---- the pair ---- */

static void on_news(void *owner) {
  chat *c = owner;
  err trouble = {0};
  const char *text;
  size_t size;
  if (pair_signal(c->pair)) leave(c, command_signal_status(pair_signal(c->pair)));
  if (pair_trouble(c->pair, &trouble) && !c->over) {
    command_error(STATUS_WORKER, "%s", trouble.text);
    leave(c, STATUS_WORKER);
  }
  if (!c->ready && pair_ready(c->pair)) {
    c->ready = true;
    ask_line(c);
  }
  if (c->asking) {
    answer_look(&c->answer, c->pair, &text, &size);
    if (size) say(c, text, size);
    if (c->answer.finish && !c->answer.session) end_answer(c);
  }
  take_lines(c);
  if (c->over) pair_finish(c->pair);
}

static int converse(chat *c) {
  err e = {0};
  pair_options o = {.flags = &c->flags, .context = c->context, .log = &c->log, .on_news = on_news, .owner = c};
  if (pair_open(&c->pair, &o, &e)) return command_error(STATUS_WORKER, "%s", e.text);
  output_init(&c->out, pair_loop(c->pair), STDOUT_FILENO, NULL, NULL);
  int rc = text_model_load(&c->model, c->flags.template, &e); /* while the target loads the weights */
  if (rc == ERR_OK) rc = text_model_needs_text(&c->model, &e);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_MODEL, "%s", e.text);
  if (c->flags.system && add_turn(c, "system", c->flags.system, strlen(c->flags.system)))
    return command_error(STATUS_FAILED, "out of memory");
  rc = pair_serve(c->pair, &c->model, &e);
  if (rc) return command_error(command_serve_status(rc), "%s", e.text);
  if (lines_watch(pair_loop(c->pair), &c->keyboard, STDIN_FILENO) != 0)
    return command_error(STATUS_IO, "cannot wait for the terminal");
  c->keyboard.data = c;
  uv_poll_start(&c->keyboard, UV_READABLE, on_keyboard);
  fputs("One line a message. /new begins anew, Ctrl-D ends.\n", stderr);
  pair_run(c->pair);
  uv_close((uv_handle_t *)&c->keyboard, NULL);
  return c->status;
}

int command_chat(const flags *f) {
  err e = {0};
  chat *c = calloc(1, sizeof *c);
  if (!c) return command_error(STATUS_FAILED, "out of memory");
  c->flags = *f;
  c->log = (logger){"tandem", f->verbose ? LOG_INFO : LOG_WARNING};
  answer_init(&c->answer, &c->model);
  int rc = text_model_open(&c->model, f->model, &e);
  int code = rc ? command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_MODEL, "%s", e.text) : STATUS_OK;
  if (!code && text_model_context(&c->model, f->context, &c->context, &e))
    code = command_error(STATUS_USAGE, "%s", e.text);
  if (!code) code = converse(c);
  pair_close(c->pair);
  output_fini(&c->out);
  answer_fini(&c->answer);
  drop_turns(c, 0);
  free(c->turns);
  text_model_close(&c->model);
  free(c);
  return code;
}
