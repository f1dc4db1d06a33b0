/* tandem run without a prompt, on a terminal: a conversation. What was said is conversation.c's, the terminal
 * line_editor.c's. */
#include "common/base/clock.h"
#include "common/base/output_file.h"
#include "common/base/program.h"
#include "common/base/terminal.h"
#include "common/base/user_folder.h"
#include "common/base/utf8.h"
#include "orchestrator/cli/async_output.h"
#include "orchestrator/cli/chat_input.h"
#include "orchestrator/cli/closing_lines.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/conversation.h"
#include "orchestrator/cli/default_head.h"
#include "orchestrator/cli/input_file.h"
#include "orchestrator/cli/line_editor.h"
#include "orchestrator/cli/show.h"
#include "orchestrator/ledger/ledger_database.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* So many tokens must be left for a reply, if it may have so many: else old messages have to go. */
#define ROOM_MIN 64
#define PROMPT   "> "
#define NOTE_MAX 400
#define HISTORY  "history" /* the name of the file, which lies beside the default ledger */

typedef struct totals { /* of all replies in the conversation */
  int32_t count;
  int64_t tokens, timed_tokens;
  uint64_t timed_us, accepted, drafted;
} totals;

typedef struct chat {
  flags *flags; /* with the request, which gets one prompt after the other */
  text_model model;
  logger log;
  service *service;
  completion completion;
  ledger_session cut; /* the reply that is continued, if one is */
  async_output out;
  show show;
  line_editor *editor;
  const char *history; /* its file, or NULL */
  conversation said;
  input_file read; /* by /read: its text goes before the next message */
  totals sum;
  bool colour;
  bool asking, stopping, ready, over; /* asking: a reply is under way; stopping: it has been cancelled */
  bool leaving;                       /* the next Ctrl-C leaves */
  int status;
} chat;

/* ---- what is said to the user ---- */

static void say(chat *c, const char *text, size_t size) {
  if (async_output_add(&c->out, text, size)) c->status = STATUS_FAILED;
}

/* Prints a line that is not part of any reply: dim, on stderr. */
static void note(const chat *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(const chat *c, const char *format, ...) {
  char text[NOTE_MAX], clean[TERMINAL_CLEAN_MAX(NOTE_MAX) + 1];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  clean[terminal_clean_message(clean, text, strlen(text))] = 0;
  fprintf(stderr, "%s%s%s\n", c->colour ? "\033[2m" : "", clean, c->colour ? "\033[0m" : "");
}

static void leave(chat *c, int code) {
  if (c->over) return;
  c->over = true;
  c->status = c->status ? c->status : code;
}

/* ---- one reply ---- */

static void on_interrupt(void *owner) {
  chat *c = owner;
  if (c->over) return;
  if (!c->ready || (c->asking && c->stopping))
    leave(c, STATUS_INTERRUPTED);
  else if (!c->asking)
    line_editor_interrupt(c->editor);
  else if (c->completion.session)
    completion_cancel(&c->completion, c->service);
  c->stopping = c->asking;
}

static void on_text(void *context, const char *text, size_t size, bool accepted) {
  chat *c = context;
  if (show_text(&c->show, text, size, accepted)) c->status = STATUS_FAILED;
}

static void on_end(void *context, const completion *ended) {
  chat *c = context;
  if (show_end(&c->show, ended)) c->status = STATUS_FAILED;
  c->asking = false;
}

static void fresh_completion(chat *c) {
  const completion_sink sink = {.on_text = on_text, .on_end = on_end, .context = c};
  completion_fini(&c->completion);
  ledger_session_fini(&c->cut);
  c->cut = (ledger_session){0};
  completion_init(&c->completion, &c->model, &sink);
  c->completion.accepted_wanted = show_wants_accepted(&c->show);
}

static void take_totals(totals *t, const completion *a) {
  t->count += !a->resume;
  t->tokens += completion_fresh_tokens(a);
  t->timed_tokens += completion_timed_tokens(a);
  t->timed_us += completion_timed_us(a);
  t->accepted += a->stats.accepted;
  t->drafted += a->stats.rows;
}

/* Prints the figures of the reply, and why it is not longer. */
static void tell_end(chat *c) {
  const completion *a = &c->completion;
  char figures[CLOSING_LINES_FIGURES_MAX];
  closing_lines_figures(a, figures);
  bool full = a->context - (int32_t)a->prompt.count <= a->count;
  if (a->finish == WIRE_FINISH_CANCELLED)
    note(c, "%s; stopped: /continue goes on", figures);
  else if (a->finish != WIRE_FINISH_LENGTH)
    note(c, "%s", figures);
  else if (full)
    note(c, "%s; the context of %d is full (length)", figures, a->context);
  else
    note(c, "%s; cut at %d tokens (length): /continue goes on", figures, a->max_tokens);
}

/* Adds what came to the conversation. False: nothing came. */
static bool keep_reply(chat *c) {
  const completion *a = &c->completion;
  size_t size = a->shown < a->text_size ? a->shown : a->text_size;
  if (size == 0 && a->finish == WIRE_FINISH_CANCELLED) return false;
  if (conversation_last_is(&c->said, "assistant"))
    conversation_drop_last(&c->said); /* which this one continues */
  if (conversation_add(&c->said, "assistant", a->text, size)) leave(c, STATUS_FAILED);
  return true;
}

/* Ends the line of a reply that nobody waits for any more: nothing follows it. */
static void leave_reply(chat *c) {
  c->asking = false;
  if (show_end(&c->show, &c->completion)) c->status = STATUS_FAILED;
  say(c, "\n", completion_line_is_open(&c->completion));
}

/* Runs the loop until the reply is over and written. False: it does not become part of the conversation. */
static bool await_reply(chat *c) {
  while (!c->over && (c->asking || !async_output_idle(&c->out)))
    uv_run(service_loop(c->service), UV_RUN_ONCE);
  const completion *a = &c->completion;
  if (c->over) {
    leave_reply(c);
    return false;
  }
  say(c, "\n", a->shown == 0 || completion_line_is_open(a));
  while (!async_output_idle(&c->out)) uv_run(service_loop(c->service), UV_RUN_ONCE);
  if (c->out.failed)
    leave(c, command_error(STATUS_IO, "cannot write the answer: %s", uv_strerror(c->out.failed)));
  if (a->trouble.code) leave(c, command_error(STATUS_WORKER, "%s", a->trouble.text));
  if (c->over) return false;
  take_totals(&c->sum, a);
  c->leaving = a->finish == WIRE_FINISH_CANCELLED;
  bool kept = keep_reply(c);
  if (kept)
    tell_end(c);
  else
    note(c, "stopped before anything came; Ctrl-C again leaves");
  return kept;
}

static bool begin_reply(chat *c) {
  err e = {0};
  c->stopping = false;
  c->asking = completion_begin(&c->completion, c->service, &c->flags->request, &e) == ERR_OK;
  if (c->asking) return await_reply(c);
  command_error(STATUS_INPUT, "%s", e.text);
  return false;
}

/* ---- messages ---- */

static int64_t count_tokens(void *context, const chat_message *messages, int32_t count) {
  const chat *c = context;
  tokenizer_ids ids = {0};
  err e = {0};
  int rc = text_model_messages(&c->model, messages, count, &ids, &e);
  int64_t tokens = rc ? rc : (int64_t)ids.count;
  tokenizer_ids_fini(&ids);
  return tokens;
}

/* So many tokens of the context may be taken, so that there is room for a reply. */
static size_t prompt_room(const chat *c) {
  const request *r = &c->flags->request;
  int32_t wanted = r->max_tokens < ROOM_MIN ? r->max_tokens : ROOM_MIN;
  return (size_t)(r->context - (wanted < r->context / 4 ? wanted : r->context / 4));
}

static void tell_stats(const chat *c) {
  const totals *t = &c->sum;
  double rate = completion_speed(t->timed_tokens, t->timed_us);
  char speed[40] = "";
  if (rate > 0) snprintf(speed, sizeof speed, ", %.1f tok/s", rate);
  note(c, "%d answer%s: %lld tokens%s; the draft guessed %llu of %llu right", t->count,
       t->count == 1 ? "" : "s", (long long)t->tokens, speed, (unsigned long long)t->accepted,
       (unsigned long long)t->drafted);
  int64_t used = c->said.count ? count_tokens((void *)c, c->said.messages, c->said.count) : 0;
  int32_t context = c->flags->request.context;
  if (used > context) used = context; /* with what the template puts before the next answer */
  note(c, "%lld of the context's %d tokens are used", (long long)(used > 0 ? used : 0), context);
}

/* What changes nothing of the conversation, so that it may be asked for at any time. False: it is another
 * command. */
static bool take_aside(chat *c, const chat_input *t) {
  switch (t->kind) {
  case CHAT_INPUT_NOTHING:
    return true;
  case CHAT_INPUT_HELP:
    chat_input_print_help(stderr);
    return true;
  case CHAT_INPUT_EXIT:
    line_editor_end_prompt(c->editor);
    leave(c, STATUS_OK);
    return true;
  case CHAT_INPUT_STATS:
    tell_stats(c);
    return true;
  case CHAT_INPUT_BAD:
    note(c, "%s", t->text);
    return true;
  default:
    return false;
  }
}

/* How many exchanges go, of which the prompt names n; -1: the user does not want that. /clear lets all go. */
static int32_t agreed(chat *c, const char *prompt, int32_t n) {
  const char *text;
  size_t size;
  while (line_editor_read(c->editor, prompt, false, &text, &size) == LINE_TEXT && !c->over) {
    chat_input t;
    chat_input_parse(text, size, &t);
    if (t.kind == CHAT_INPUT_MESSAGE && strchr("yYnN", text[0])) return strchr("yY", text[0]) ? n : -1;
    if (t.kind == CHAT_INPUT_CLEAR) {
      note(c, "what was said before is forgotten");
      return conversation_exchanges(&c->said);
    }
    if (!take_aside(c, &t) && t.kind != CHAT_INPUT_MESSAGE) note(c, "answer y or n first");
    if (c->over) break;
  }
  return -1;
}

/* Makes sure that the context leaves room for a reply: old messages are dropped if the user agrees. */
static bool make_room(chat *c) {
  char prompt[64] = "drop the oldest message and its answer? (y/n) ";
  int32_t n = conversation_exchanges_to_drop(&c->said, prompt_room(c), count_tokens, c);
  if (n < 0)
    n = conversation_exchanges_to_drop(&c->said, (size_t)c->flags->request.context - 1, count_tokens, c);
  if (n <= 0) return true; /* also where counting failed: sending the conversation will say why */
  note(c, "the conversation has %lld tokens, which leaves too few of the context's %d for an answer",
       (long long)count_tokens(c, c->said.messages, c->said.count), c->flags->request.context);
  if (n > 1) snprintf(prompt, sizeof prompt, "drop the oldest %d messages and their answers? (y/n) ", n);
  n = agreed(c, prompt, n);
  if (n > 0) conversation_drop_oldest(&c->said, n);
  return n > 0;
}

/* Makes the conversation the prompt of the request. */
static int take_conversation(chat *c, err *e) {
  const chat_message *messages = c->said.messages;
  request *r = &c->flags->request;
  int rc = request_set_text(r, "", 0, e); /* instead of the messages of the last answer */
  for (int32_t i = 0; rc == ERR_OK && i < c->said.count; i++)
    rc = request_add_message(r, messages[i].role, messages[i].content, messages[i].size, e);
  const chat_message *last = &messages[c->said.count - 1];
  return rc ? rc : request_set_title(r, last->content, last->size, e);
}

/* Sends the conversation and awaits the reply. False: there is none. */
static bool ask(chat *c) {
  err e = {0};
  fresh_completion(c);
  if (!make_room(c)) {
    if (!c->over) note(c, "not sent: /clear forgets what was said, --ctx makes the context longer");
    return false;
  }
  int rc = take_conversation(c, &e);
  if (rc == ERR_OK) rc = completion_prepare(&c->completion, &c->flags->request, &e);
  command_warn_dropped(c->completion.prompt.dropped_bytes);
  if (rc == ERR_OK) return begin_reply(c);
  command_error(STATUS_INPUT, "%s (/clear begins anew)", e.text);
  return false;
}

/* The text that /read has brought, an empty line, and this one; data NULL: no memory. */
static input_file after_what_was_read(const chat *c, const char *text, size_t size) {
  size_t before = c->read.size;
  input_file whole = {.data = malloc(before + size + 3)};
  if (!whole.data) return whole;
  if (before) memcpy(whole.data, c->read.data, before), memcpy(whole.data + before, "\n\n", 2), before += 2;
  memcpy(whole.data + before, text, size);
  whole.size = before + size;
  whole.data[whole.size] = 0;
  return whole;
}

/* Sends a message, after the text that /read has brought. One that cannot be sent is dropped again. */
static void send_message(chat *c, const char *text, size_t size) {
  input_file whole = after_what_was_read(c, text, size);
  if (!whole.data || conversation_add(&c->said, "user", whole.data, whole.size)) leave(c, STATUS_FAILED);
  input_file_fini(&whole);
  if (c->over) return;
  if (ask(c))
    input_file_fini(&c->read);
  else
    conversation_drop_last(&c->said);
}

/* ---- commands ---- */

/* "", or TEMPERATURE, or TEMPERATURE and SEED; they hold from now on. */
static int take_sampling(sampler_options *s, const char *text, err *e) {
  char number[32];
  double temperature = (double)s->temperature;
  size_t size = strcspn(text, " \t"), blanks = strspn(text + size, " \t");
  uint64_t seed = s->seed + 1;
  int64_t given = 0;
  snprintf(number, sizeof number, "%.*s", (int)size, text);
  int rc = size ? program_double("TEMPERATURE", number, 0, SAMPLER_TEMPERATURE_MAX, &temperature, e) : ERR_OK;
  if (rc == ERR_OK && text[size]) rc = program_int("SEED", text + size + blanks, 0, INT64_MAX, &given, e);
  if (rc) return rc;
  s->temperature = (float)temperature;
  s->seed = text[size] ? (uint64_t)given : seed;
  return ERR_OK;
}

static void regenerate(chat *c, const char *how) {
  sampler_options *s = &c->flags->request.sampling;
  err e = {0};
  if (!conversation_last_is(&c->said, "assistant")) {
    note(c, "there is no answer yet");
    return;
  }
  if (!*how && s->temperature == 0) {
    note(c, "at temperature 0 it would be the same: /regen 0.8 or /regen 0.8 SEED draws another one");
    return;
  }
  if (take_sampling(s, how, &e)) {
    note(c, "%s", e.text);
    return;
  }
  const chat_message *last = &c->said.messages[c->said.count - 1];
  char *old = strndup(last->content, last->size); /* is restored if no new reply takes its place */
  conversation_drop_last(&c->said);
  if (!old || (!ask(c) && conversation_add(&c->said, "assistant", old, strlen(old)))) leave(c, STATUS_FAILED);
  free(old);
}

static void go_on(chat *c) {
  err e = {0};
  ledger_session cut = {0};
  completion *a = &c->completion;
  if (!conversation_last_is(&c->said, "assistant"))
    err_set(&e, ERR_ARG, "there is no answer yet");
  else
    completion_to_resume(a, &c->flags->request, c->flags->request.max_tokens, &cut, &e);
  if (e.code) {
    note(c, "%s", e.text);
    ledger_session_fini(&cut);
    return;
  }
  fresh_completion(c);
  c->cut = cut;
  a->resume = &c->cut;
  begin_reply(c);
}

/* Can it be a message, after what was said and with room for a reply? Older messages may go, but only if the
 * user agrees, so that they count here. */
static int check_length(const chat *c, const input_file *in, const char *name, err *e) {
  int32_t said = c->said.count;
  chat_message *list = calloc((size_t)said + 1, sizeof *list);
  if (!list) return err_set(e, ERR_NOMEM, "out of memory for %s", name);
  for (int32_t i = 0; i < said; i++) list[i] = c->said.messages[i];
  list[said] = (chat_message){.role = "user", .content = in->data, .size = in->size};
  int64_t tokens = count_tokens((void *)c, list, said + 1);
  free(list);
  if (tokens < 0) return err_set(e, (int)tokens, "%s cannot be a message: %s", name, err_name((int)tokens));
  if ((size_t)tokens <= prompt_room(c)) return ERR_OK;
  return err_set(
      e, ERR_LIMIT,
      "%s is too long: with it the conversation would have %lld tokens, and there is room for %zu%s", name,
      (long long)tokens, prompt_room(c),
      said > conversation_system(&c->said) ? " (/clear forgets what was said)" : "");
}

/* After what was read before. */
static int take_file(chat *c, const char *name, err *e) {
  input_file in, whole = {0};
  int rc = input_file_read(&in, name, TOKENIZER_TEXT_MAX, e);
  if (rc) return rc;
  while (in.size > 0 && in.data[in.size - 1] == '\n') in.size--;
  if (utf8_valid(in.data, in.size) != in.size)
    rc = err_set(e, ERR_FORMAT, "%s is not UTF-8 text", name);
  else if (!(whole = after_what_was_read(c, in.data, in.size)).data)
    rc = err_set(e, ERR_NOMEM, "out of memory for %s", name);
  else
    rc = check_length(c, &whole, name, e);
  input_file_fini(&in);
  input_file *old = rc ? &whole : &c->read;
  input_file_fini(old);
  if (rc == ERR_OK) c->read = whole;
  return rc;
}

/* With one that is too long goes what was read before, too: nothing is left that nobody remembers. */
static void read_file(chat *c, const char *name) {
  err e = {0};
  size_t before = c->read.size;
  int rc = take_file(c, name, &e);
  if (rc == ERR_LIMIT) input_file_fini(&c->read);
  if (rc)
    note(c, "%s%s", e.text, rc == ERR_LIMIT ? "; no file goes before your next message" : "");
  else
    note(c, "%zu bytes of %s go before your next message%s", c->read.size - (before ? before + 2 : 0), name,
         before ? ", after what was read before" : "");
}

static void clear(chat *c) {
  conversation_clear(&c->said);
  fresh_completion(c);
  input_file_fini(&c->read);
  note(c, "what was said is forgotten");
}

static void take_line(chat *c, const char *line, size_t size) {
  chat_input t;
  chat_input_parse(line, size, &t);
  if (take_aside(c, &t)) return;
  char *text = strndup(t.text, t.size); /* make_room may read another line from the user meanwhile */
  if (!text)
    leave(c, STATUS_FAILED);
  else if (t.kind == CHAT_INPUT_MESSAGE)
    send_message(c, text, t.size);
  else if (t.kind == CHAT_INPUT_CLEAR)
    clear(c);
  else if (t.kind == CHAT_INPUT_REGEN)
    regenerate(c, text);
  else if (t.kind == CHAT_INPUT_CONTINUE)
    go_on(c);
  else if (t.kind == CHAT_INPUT_READ)
    read_file(c, text);
  free(text);
}

static void take_interrupt(chat *c) {
  if (!line_editor_was_empty(c->editor)) {
    c->leaving = false;
    return;
  }
  if (c->leaving)
    leave(c, STATUS_INTERRUPTED);
  else
    note(c, "Ctrl-C again, or Ctrl-D, leaves");
  c->leaving = true;
}

static void talk(chat *c) {
  const char *line;
  size_t size;
  while (!c->over && !c->ready) uv_run(service_loop(c->service), UV_RUN_ONCE);
  while (!c->over) {
    switch (line_editor_read(c->editor, PROMPT, true, &line, &size)) {
    case LINE_TEXT:
      c->leaving = false;
      take_line(c, line, size);
      break;
    case LINE_INTERRUPTED:
      take_interrupt(c);
      break;
    case LINE_END:
      leave(c, STATUS_OK);
      break;
    }
  }
}

/* ---- the service ---- */

static void on_news(void *owner) {
  chat *c = owner;
  err trouble = {0};
  if (service_signal(c->service)) leave(c, command_signal_status(service_signal(c->service)));
  if (service_trouble(c->service, &trouble) && !c->over) leave(c, command_trouble(c->service, &trouble));
  c->ready |= service_ready(c->service);
  if (c->asking) completion_update(&c->completion, c->service);
  if (c->asking) show_progress(&c->show, &c->completion, clock_us());
}

static void on_written(void *context) {
  chat *c = context;
  if (c->asking) show_progress(&c->show, &c->completion, clock_us());
}

static void on_abort(void *owner) {
  chat *c = owner;
  line_editor_restore(c->editor);
}

static bool is_over(void *owner) {
  const chat *c = owner;
  return c->over;
}

/* The path of the history file, beside the default ledger, which nothing else writes to; NULL: nothing is to
 * be kept. */
static const char *history_path(const flags *f, char out[LEDGER_PATH_MAX]) {
  bool kept = !f->given.ledger || strcmp(f->given.ledger, "none") != 0;
  err e;
  if (!kept || ledger_database_default_path(out, &e)) return NULL;
  char *name = strrchr(out, '/');
  user_folder_make_parents(out);
  snprintf(name + 1, (size_t)(out + LEDGER_PATH_MAX - name - 1), HISTORY);
  if (output_file_check(out, NULL)) return NULL;
  output_file_spare(out);
  return out;
}

static int open_editor(chat *c, err *e) {
  line_editor_options o = {
      .loop = service_loop(c->service), .history = c->history, .over = is_over, .owner = c};
  int rc = line_editor_open(&c->editor, &o, e);
  c->colour = terminal_takes_colours(STDERR_FILENO);
  return rc;
}

static int converse(chat *c) {
  err e = {0};
  char path[LEDGER_PATH_MAX];
  c->history = history_path(c->flags, path);
  service_options o = command_service_options(c->flags, c->flags->request.context, &c->log);
  o.on_news = on_news;
  o.on_interrupt = on_interrupt;
  o.on_abort = on_abort;
  o.owner = c;
  if (service_open(&c->service, &o, &e)) return command_error(STATUS_WORKER, "%s", e.text);
  async_output_init(&c->out, service_loop(c->service), STDOUT_FILENO, on_written, c);
  show_init(&c->show, (show_when)c->flags->show, &c->out);
  c->show.wraps = true;
  int rc = text_model_load(&c->model, c->flags->given.template, &e); /* while the target loads the weights */
  if (rc == ERR_OK) rc = text_model_needs_text(&c->model, &e);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_FILE, "%s", e.text);
  if (c->flags->request.system &&
      conversation_add(&c->said, "system", c->flags->request.system, strlen(c->flags->request.system)))
    return command_error(STATUS_FAILED, "out of memory");
  rc = service_serve(c->service, &c->model, &e);
  if (rc) return command_error(command_serve_status(rc), "%s", e.text);
  if (open_editor(c, &e)) return command_error(STATUS_IO, "%s", e.text);
  note(c, "/help lists the commands, Ctrl-D leaves%s", c->show.colours ? "; " SHOW_LEGEND : "");
  talk(c);
  line_editor_close(c->editor);
  c->editor = NULL;
  service_finish(c->service);
  service_run(c->service);
  while (!async_output_idle(&c->out)) uv_run(service_loop(c->service), UV_RUN_ONCE);
  return c->status;
}

int command_chat(flags *f) {
  err e = {0};
  chat *c = calloc(1, sizeof *c);
  if (!c) return command_error(STATUS_FAILED, "out of memory");
  c->flags = f;
  c->log = (logger){"tandem", f->given.verbose ? LOG_INFO : LOG_WARNING};
  completion_init(&c->completion, &c->model, NULL);
  int rc = text_model_open(&c->model, f->given.model, &e);
  if (rc == ERR_OK) default_head_use(f, c->model.file);
  int code = rc ? command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_FILE, "%s", e.text) : STATUS_OK;
  if (!code) code = command_context(&c->model, f->request.context, &f->request.context);
  if (!code) code = converse(c);
  line_editor_close(c->editor);
  service_close(c->service);
  conversation_fini(&c->said);
  input_file_fini(&c->read);
  ledger_session_fini(&c->cut);
  completion_fini(&c->completion);
  async_output_fini(&c->out);
  text_model_close(&c->model);
  free(c);
  return code;
}
