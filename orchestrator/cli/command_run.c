/* tandem run: one prompt, its answer as it comes. And tandem session resume: the rest of one that was
 * interrupted. */
#include "common/base/clock.h"
#include "orchestrator/cli/async_output.h"
#include "orchestrator/cli/closing_lines.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/default_head.h"
#include "orchestrator/cli/input_file.h"
#include "orchestrator/cli/show.h"
#include "orchestrator/cli/verify_trees.h"
#include "orchestrator/service/result_json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct run {
  flags *flags; /* with the request */
  text_model model;
  logger log;
  service *service;
  completion plain; /* --compare: the first one, without a draft */
  completion completion;
  async_output out;
  show show;
  char steps[VERIFY_TREES_PATH_MAX];  /* --tree: the file of the target's steps; "": none */
  bool begun, result_given, finished; /* result_given: everything for stdout has been handed over */
  bool compared;                      /* `plain` is complete, and `completion` is the one with the draft */
  int status;
} run;

/* ---- the prompt ---- */

static exit_status status_of_input(int code) {
  return code == ERR_NOMEM ? STATUS_FAILED : code == ERR_IO ? STATUS_IO : STATUS_INPUT;
}

/* A shell ends a text with a newline that is not meant; a raw prompt is taken as it is. */
static void trim_line_end(const flags *f, input_file *in) {
  if (!f->request.raw && in->size > 0 && in->data[in->size - 1] == '\n') in->size--;
}

static int read_prompt(run *r, const input_file *in) {
  err e = {0};
  const char *argument = r->flags->given.arguments[0];
  bool from_stdin = !r->completion.resume && strcmp(argument, "-") == 0;
  const char *text = from_stdin ? in->data : argument;
  int rc = ERR_OK;
  if (!r->completion.resume) {
    size_t size = from_stdin ? in->size : strlen(text);
    rc = request_set_text(&r->flags->request, text, size, &e);
    if (rc == ERR_OK) rc = request_set_title(&r->flags->request, text, size, &e);
  }
  if (rc == ERR_OK) rc = completion_prepare(&r->completion, &r->flags->request, &e);
  command_warn_dropped(r->completion.prompt.dropped_bytes);
  return rc ? command_prompt_error(&e) : STATUS_OK;
}

/* ---- while it runs ---- */

static void finish(run *r) {
  if (r->finished || !r->result_given || r->completion.session || !async_output_idle(&r->out)) return;
  r->finished = true;
  service_finish(r->service);
}

static void on_written(void *context) {
  run *r = context;
  if (r->out.failed && r->completion.session)
    completion_cancel(&r->completion, r->service); /* nobody reads it */
  if (r->begun && !completion_is_over(&r->completion)) show_progress(&r->show, &r->completion, clock_us());
  finish(r);
}

static bool is_whole(const completion *c) {
  return c->finish == WIRE_FINISH_STOP || c->finish == WIRE_FINISH_LENGTH;
}

static void on_text(void *context, const char *text, size_t size, bool accepted) {
  run *r = context;
  if (r->flags->given.json || r->compared) return;
  if (show_text(&r->show, text, size, accepted)) r->status = STATUS_FAILED;
}

static void show_result(run *r) {
  if (r->result_given) return;
  r->result_given = true;
  if (show_end(&r->show, &r->completion)) r->status = STATUS_FAILED;
  const completion *c = &r->completion;
  if (!r->flags->given.json || (c->finish == WIRE_FINISH_ERROR && c->count == 0))
    return; /* there is no answer to print */
  bool both = r->compared && is_whole(&r->completion);
  char *line = result_json_line(both ? result_json_of_both(&r->plain, &r->completion)
                                     : result_json_of(&r->completion, NULL));
  if (!line || async_output_add(&r->out, line, strlen(line))) r->status = STATUS_FAILED;
  free(line);
}

static void begin(run *r) {
  err e = {0};
  request q = r->flags->request; /* shares what the request owns, for this call */
  r->begun = true;
  r->completion.accepted_wanted = show_wants_accepted(&r->show);
  if (r->flags->given.compare && !r->compared) request_speculate_not(&q);
  if (completion_begin(&r->completion, r->service, &q, &e)) completion_fail(&r->completion, r->service, &e);
}

/* The same once more, with the draft. Only what comes after the first tokens is timed: the prompt has been
 * read already. */
static void begin_again(run *r) {
  const completion_sink sink = r->completion.sink;
  r->plain = r->completion;
  r->plain.stats.accepted_per_pos = r->plain.accepted_per_pos;
  r->compared = true;
  r->show.plain = completion_tokens_per_second(&r->plain);
  completion_init(&r->completion, &r->model, &sink);
  begin(r);
}

static void stop(run *r, const err *why) {
  if (why)
    completion_fail(&r->completion, r->service, why);
  else
    completion_cancel(&r->completion, r->service);
  r->begun = true;
}

static void on_news(void *owner) {
  run *r = owner;
  err trouble = {0};
  if (service_trouble(r->service, &trouble))
    stop(r, &trouble);
  else if (service_signal(r->service))
    stop(r, NULL);
  else if (!r->begun && service_ready(r->service))
    begin(r);
  completion_update(&r->completion, r->service);
  bool over = completion_is_over(&r->completion);
  if (over && r->flags->given.compare && !r->compared && is_whole(&r->completion) && !r->out.failed)
    begin_again(r);
  else if (over)
    show_result(r);
  else
    show_progress(&r->show, &r->completion, clock_us());
  finish(r);
}

/* ---- the end ---- */

/* On a terminal, ends the line so that what follows begins at the left edge. */
static void end_line(const run *r) {
  const completion *c = r->compared ? &r->plain : &r->completion;
  bool open = !r->flags->given.json && completion_line_is_open(c);
  if (open && isatty(STDOUT_FILENO) && !r->out.failed && write(STDOUT_FILENO, "\n", 1) < 0) return;
}

static int report(const run *r) {
  bool both = r->compared && is_whole(&r->completion);
  const closing_lines_options words = {.kept = r->completion.id && service_keeps(r->service),
                                       .ledger = r->flags->given.ledger,
                                       .same_limit = r->completion.resume && !r->flags->request.max_tokens,
                                       .seed_drawn = !r->flags->request.seed_given && !r->completion.resume &&
                                                     r->flags->request.sampling.temperature > 0,
                                       .details = r->flags->given.verbose,
                                       .gain = r->flags->show != SHOW_NEVER,
                                       .legend = r->show.colours && !both};
  end_line(r);
  if (r->completion.trouble.code) command_trouble(r->service, &r->completion.trouble);
  command_closing closing;
  FILE *to = command_closing_open(&closing, r->flags);
  if (both)
    closing_lines_print_both(to, &r->plain, &r->completion, &words);
  else if (!r->completion.trouble.code || r->completion.count > 0)
    closing_lines_print(to, &r->completion, &words);
  command_closing_close(&closing);
  if (r->status) return command_error(r->status, "out of memory");
  if (service_signal(r->service)) return command_signal_status(service_signal(r->service));
  if (r->out.failed)
    return command_error(STATUS_IO, "cannot write the answer: %s", uv_strerror(r->out.failed));
  if (!service_kept(r->service)) return STATUS_IO;
  if (both && completion_first_difference(&r->plain, &r->completion) >= 0) return STATUS_FAILED;
  return r->completion.trouble.code ? STATUS_WORKER : STATUS_OK;
}

static int print_trees(run *r, int code) {
  err e = {0};
  if (!r->steps[0] || verify_trees_end(r->steps, r->flags->given.tree, &r->model, &e) == ERR_OK) return code;
  return command_error(STATUS_IO, "--tree: %s", e.text);
}

/* Of the draft that nobody has asked for: to start a program beside so short an answer takes longer than its
 * guesses save. */
#define DRAFTED_TOKENS     32
#define DRAFTED_TOKENS_SAY "no draft is started for fewer than 32 tokens"

static const char *why_without_draft(const run *r) {
  const flags *f = r->flags;
  bool wanted = !f->draft_by_default || f->given.listen || f->given.compare || f->given.tree;
  bool is_short = f->request.max_tokens > 0 && f->request.max_tokens < DRAFTED_TOKENS;
  return wanted || r->completion.resume || !is_short ? NULL : DRAFTED_TOKENS_SAY;
}

static int complete_by_service(run *r, const input_file *in) {
  err e = {0};
  service_options o = command_service_options(r->flags, r->flags->request.context, &r->log);
  o.resume = r->completion.resume;
  o.draft_left_out = why_without_draft(r);
  o.on_news = on_news;
  o.owner = r;
  if (r->flags->given.tree && verify_trees_begin(r->steps, &e))
    return command_error(STATUS_IO, "--tree: %s", e.text);
  o.workers.record_steps = r->flags->given.tree ? r->steps : NULL;
  if (service_open(&r->service, &o, &e)) return command_error(STATUS_WORKER, "%s", e.text);
  async_output_init(&r->out, service_loop(r->service), STDOUT_FILENO, on_written, r);
  show_init(&r->show, r->flags->given.json ? SHOW_NEVER : (show_when)r->flags->show, &r->out);
  int rc = text_model_load(&r->model, r->flags->given.template, &e); /* while the target loads the weights */
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_FILE, "%s", e.text);
  rc = read_prompt(r, in);
  if (rc) return rc;
  rc = service_serve(r->service, &r->model, &e);
  if (rc) return command_error(command_serve_status(rc), "%s", e.text);
  service_run(r->service);
  return print_trees(r, report(r));
}

/* Checks what is cheap to check before the programs start. */
static int prepare(run *r, input_file *in) {
  err e = {0};
  const ledger_session *l = r->completion.resume;
  request *q = &r->flags->request;
  if (!l && strcmp(r->flags->given.arguments[0], "-") == 0) {
    if (input_file_read(in, "-", TOKENIZER_TEXT_MAX, &e))
      return command_error(status_of_input(e.code), "%s", e.text);
    trim_line_end(r->flags, in);
  }
  int rc = text_model_open(&r->model, r->flags->given.model, &e);
  if (rc == ERR_OK && !l) default_head_use(r->flags, r->model.file);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_FILE, "%s", e.text);
  if (l && !text_model_is(&r->model, l->fingerprint))
    return command_error(
        STATUS_FILE, "%s is not the model of session %016llx, or was changed since: give that one with -m",
        r->flags->given.model, (unsigned long long)l->id);
  return command_context(&r->model, l ? l->options.context : q->context, &q->context);
}

static int complete_one(flags *f, const ledger_session *resume) {
  run r = {.flags = f, .log = {"tandem", f->given.verbose ? LOG_INFO : LOG_WARNING}};
  const completion_sink sink = {.on_text = on_text, .context = &r};
  input_file in = {0};
  completion_init(&r.completion, &r.model, &sink);
  r.completion.resume = resume;
  r.completion.show_whole = f->given.whole || f->given.json;
  int code = prepare(&r, &in);
  if (code == STATUS_OK) code = complete_by_service(&r, &in);
  service_close(r.service);
  if (r.steps[0]) unlink(r.steps); /* where it has not been printed */
  async_output_fini(&r.out);
  completion_fini(&r.plain);
  completion_fini(&r.completion);
  text_model_close(&r.model);
  input_file_fini(&in);
  return code;
}

int command_resume(flags *f, const ledger_session *resume) {
  return complete_one(f, resume);
}

int command_run(int argc, char **argv) {
  flags f;
  flags_parse(&f, COMMAND_RUN, argc, argv);
  int code = f.given.argument_count == 0 ? command_chat(&f) : complete_one(&f, NULL);
  flags_fini(&f);
  return code;
}
