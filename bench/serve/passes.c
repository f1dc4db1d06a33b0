#include "bench/serve/passes.h"

#include <stdlib.h>

static int run_load(pass *to, const passes_options *o, char **bodies, size_t count, err *e) {
  load_options load = o->load;
  load.streams = to->streams;
  to->answers = calloc(count, sizeof *to->answers);
  if (!to->answers) return err_set(e, ERR_NOMEM, "out of memory");
  to->figures.answers = count;
  int code = load_run(&load, bodies, count, to->answers, e);
  return code ? code : figures_make(&to->figures, to->answers, count);
}

static int run_pass(pass *to, const passes_options *o, err *e) {
  prompts_options p = o->prompts;
  char **bodies;
  size_t count;
  p.no_speculation = to->plain;
  int code = prompts_read(&bodies, &count, o->path, o->count, &p, e);
  if (!code) code = run_load(to, o, bodies, count, e);
  prompts_free(bodies, count);
  return code;
}

static void compare(pass *drafted, const pass *plain) {
  double speed = figures_tokens_per_second(&plain->figures);
  drafted->differing = (int64_t)figures_differing(drafted->answers, plain->answers, plain->figures.answers);
  drafted->gain = speed > 0 ? figures_tokens_per_second(&drafted->figures) / speed : 0;
}

int passes_run(passes *p, const passes_options *o, void (*each)(void *context, const pass *done),
               void *context, err *e) {
  *p = (passes){0};
  for (int32_t i = 0; i < 2 * o->streams_count; i++) {
    bool plain = i % 2 == 0;
    if (plain ? !o->plain : !o->drafted) continue;
    pass *now = &p->list[p->count++];
    *now = (pass){.streams = o->streams[i / 2], .plain = plain, .differing = -1};
    int code = run_pass(now, o, e);
    if (code) return code;
    if (!plain && o->plain) compare(now, now - 1);
    each(context, now);
  }
  return ERR_OK;
}

void passes_free(passes *p) {
  for (int32_t i = 0; i < p->count; i++) {
    for (size_t k = 0; p->list[i].answers && k < p->list[i].figures.answers; k++)
      answer_stream_fini(&p->list[i].answers[k].stream);
    free(p->list[i].answers);
  }
  *p = (passes){0};
}
