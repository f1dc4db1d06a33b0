/* tandem run: one prompt, its answer as it comes. And tandem session resume: the rest of one that was
 * interrupted. */
#include "orchestrator/cli/commands.h"
#include "orchestrator/cli/input.h"
#include "orchestrator/cli/output.h"
#include "orchestrator/cli/result.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct run {
  flags flags;
  text_model model;
  int32_t context;
  logger log;
  service *pair;
  completion plain; /* --compare: the first one, without a draft */
  completion answer;
  output out;
  bool begun, told, finished; /* told: everything for stdout has been handed over */
  bool compared;              /* the plain answer is whole: this is the one with the draft */
  int status;
} run;

/* ---- the prompt ---- */

static status status_of_prompt(int code) {
  return code == ERR_NOMEM ? STATUS_FAILED : code == ERR_IO ? STATUS_IO : STATUS_INPUT;
}

/* From a shell a text comes with a line end that is not meant; a raw one is taken as it is. */
static void trim_line_end(const flags *f, input *in) {
  if (!f->raw && in->size > 0 && in->data[in->size - 1] == '\n') in->size--;
}

static int take_prompt(run *r, const char *text, size_t size, err *e) {
  prompt_options o = {.raw = r->flags.raw, .special = !r->flags.no_special, .system = r->flags.system};
  int rc = text_model_prompt(&r->model, &o, text, size, &r->answer.prompt, e);
  if (rc == ERR_OK)
    rc = text_model_check(&r->model, r->answer.prompt.ids, r->answer.prompt.count, r->context, e);
  command_warn_dropped(r->answer.prompt.dropped_bytes);
  return rc;
}

static int take_resumed(run *r) {
  const ledger_session *l = r->answer.resume;
  tokenizer_ids *ids = &r->answer.prompt;
  size_t size = (size_t)l->prompt_length * sizeof *ids->ids;
  ids->ids = malloc(size);
  if (!ids->ids) return command_error(STATUS_FAILED, "out of memory");
  memcpy(ids->ids, l->tokens, size);
  ids->count = ids->capacity = (size_t)l->prompt_length;
  return STATUS_OK;
}

static int read_prompt(run *r, const input *in) {
  if (r->answer.resume) return take_resumed(r);
  err e = {0};
  const char *text = r->flags.arguments[0];
  bool from_stdin = strcmp(text, "-") == 0;
  r->answer.title = from_stdin ? in->data : text;
  int rc = take_prompt(r, from_stdin ? in->data : text, from_stdin ? in->size : strlen(text), &e);
  return rc ? command_error(status_of_prompt(rc), "%s", e.text) : STATUS_OK;
}

/* ---- while it runs ---- */

static void finish(run *r) {
  if (r->finished || !r->told || r->answer.session || !output_idle(&r->out)) return;
  r->finished = true;
  service_finish(r->pair);
}

static void on_written(void *context) {
  run *r = context;
  if (r->out.failed && r->answer.session) service_cancel(r->pair, r->answer.session); /* nobody reads it */
  finish(r);
}

static bool is_whole(const completion *a) {
  return a->finish == WIRE_FINISH_STOP || a->finish == WIRE_FINISH_LENGTH;
}

static void show_result(run *r) {
  if (r->told) return;
  r->told = true;
  if (!r->flags.json) return;
  bool both = r->compared && is_whole(&r->answer);
  char *line = result_line(both ? result_of_both(&r->plain, &r->answer) : result_of(&r->answer, NULL));
  if (!line || output_add(&r->out, line, strlen(line))) r->status = STATUS_FAILED;
  free(line);
}

static void begin(run *r) {
  err e = {0};
  flags f = r->flags;
  r->begun = true;
  if (f.compare && !r->compared) f.draft = "none";
  if (completion_begin(&r->answer, r->pair, &f, r->context, &e)) completion_fail(&r->answer, r->pair, &e);
}

/* The same once more, with the draft. Only what comes after the first tokens is timed: the prompt has been
 * read already. */
static void begin_again(run *r) {
  err e = {0};
  r->plain = r->answer;
  r->plain.stats.accepted_per_pos = r->plain.accepted_per_pos;
  r->compared = true;
  completion_init(&r->answer, &r->model);
  r->answer.title = r->plain.title;
  for (size_t i = 0; i < r->plain.prompt.count && !e.code; i++)
    if (tokenizer_ids_add(&r->answer.prompt, r->plain.prompt.ids[i])) err_set(&e, ERR_NOMEM, "out of memory");
  if (e.code)
    completion_fail(&r->answer, r->pair, &e);
  else
    begin(r);
}

static void stop(run *r, const err *why) {
  if (why)
    completion_fail(&r->answer, r->pair, why);
  else if (!r->begun)
    r->answer.finish = WIRE_FINISH_CANCELLED;
  else if (r->answer.session && !r->answer.finish)
    service_cancel(r->pair, r->answer.session);
  r->begun = true;
}

static void on_news(void *owner) {
  run *r = owner;
  err trouble = {0};
  const char *text;
  size_t size;
  if (service_trouble(r->pair, &trouble))
    stop(r, &trouble);
  else if (service_signal(r->pair))
    stop(r, NULL);
  else if (!r->begun && service_ready(r->pair))
    begin(r);
  completion_look(&r->answer, r->pair, &text, &size);
  if (size && !r->flags.json && !r->compared && output_add(&r->out, text, size)) r->status = STATUS_FAILED;
  bool over = r->answer.finish && !r->answer.session;
  if (over && r->flags.compare && !r->compared && is_whole(&r->answer) && !r->out.failed)
    begin_again(r);
  else if (over)
    show_result(r);
  finish(r);
}

/* ---- the end ---- */

/* A terminal's next line begins at its left edge. */
static void end_line(const run *r) {
  const completion *a = r->compared ? &r->plain : &r->answer;
  bool open = !r->flags.json && a->shown > 0 && a->text[a->shown - 1] != '\n';
  if (open && isatty(STDOUT_FILENO) && !r->out.failed && write(STDOUT_FILENO, "\n", 1) < 0) return;
}

static int report(const run *r) {
  const result_words words = {.kept = r->answer.id && service_keeps(r->pair),
                              .seed_drawn = !r->flags.seed_given && !r->answer.resume &&
                                            r->flags.sampling.temperature > 0,
                              .details = r->flags.verbose};
  end_line(r);
  if (r->answer.trouble.code) command_error(STATUS_WORKER, "%s", r->answer.trouble.text);
  bool both = r->compared && is_whole(&r->answer);
  if (both)
    result_print_both(stderr, &r->plain, &r->answer, &words);
  else
    result_print(stderr, &r->answer, &words);
  if (r->status) return command_error(r->status, "out of memory");
  if (service_signal(r->pair)) return command_signal_status(service_signal(r->pair));
  if (r->out.failed)
    return command_error(STATUS_IO, "cannot write the answer: %s", uv_strerror(r->out.failed));
  if (!service_kept(r->pair)) return STATUS_IO;
  if (both && result_first_difference(&r->plain, &r->answer) >= 0) return STATUS_FAILED;
  return r->answer.trouble.code ? STATUS_WORKER : STATUS_OK;
}

static int converse(run *r, const input *in) {
  err e = {0};
  service_options o = {.flags = &r->flags,
                       .context = r->context,
                       .resume = r->answer.resume,
                       .log = &r->log,
                       .on_news = on_news,
                       .owner = r};
  if (service_open(&r->pair, &o, &e)) return command_error(STATUS_WORKER, "%s", e.text);
  output_init(&r->out, service_loop(r->pair), STDOUT_FILENO, on_written, r);
  int rc = text_model_load(&r->model, r->flags.template, &e); /* while the target loads the weights */
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_MODEL, "%s", e.text);
  rc = read_prompt(r, in);
  if (rc) return rc;
  rc = service_serve(r->pair, &r->model, &e);
  if (rc) return command_error(command_serve_status(rc), "%s", e.text);
  service_run(r->pair);
  return report(r);
}

/* Everything that is cheap to check, before the programs start. */
static int prepare(run *r, input *in) {
  err e = {0};
  const ledger_session *l = r->answer.resume;
  if (!l && strcmp(r->flags.arguments[0], "-") == 0) {
    int rc = input_read(in, "-", TOKENIZER_TEXT_MAX, &e);
    if (rc) return command_error(status_of_prompt(rc), "%s", e.text);
    trim_line_end(&r->flags, in);
  }
  int rc = text_model_open(&r->model, r->flags.model, &e);
  if (rc) return command_error(rc == ERR_NOMEM ? STATUS_FAILED : STATUS_MODEL, "%s", e.text);
  if (l && !hash_equal(l->fingerprint, r->model.fingerprint))
    return command_error(STATUS_MODEL, "%s is not the model of session %016llx: give that one with -m",
                         r->flags.model, (unsigned long long)l->id);
  if (text_model_context(&r->model, l ? l->options.context : r->flags.context, &r->context, &e))
    return command_error(STATUS_USAGE, "%s", e.text);
  return STATUS_OK;
}

static int answer_one(const flags *f, const ledger_session *resume) {
  run r = {.flags = *f, .log = {"tandem", f->verbose ? LOG_INFO : LOG_WARNING}};
  input in = {0};
  completion_init(&r.answer, &r.model);
  r.answer.resume = resume;
  r.answer.whole = f->whole || f->json;
  int code = prepare(&r, &in);
  if (code == STATUS_OK) code = converse(&r, &in);
  service_close(r.pair);
  output_fini(&r.out);
  completion_fini(&r.plain);
  completion_fini(&r.answer);
  text_model_close(&r.model);
  input_fini(&in);
  return code;
}

int command_resume(const flags *f, const ledger_session *resume) {
  return answer_one(f, resume);
}

int command_run(int argc, char **argv) {
  flags f;
  flags_parse(&f, FLAGS_RUN, argc, argv);
  return f.argument_count == 0 ? command_chat(&f) : answer_one(&f, NULL);
}
