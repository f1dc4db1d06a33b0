#include "draft_worker/questions.h"

#include <math.h>
#include <string.h>

enum { NO_JOB = -1 };

/* The session's job in this batch; NULL: there is no room for one more. */
static draft_job *job_of(draft_batch *b, draft_session *p) {
  if (p->job == NO_JOB && b->job_count == DRAFT_JOBS_MAX) return NULL;
  if (p->job != NO_JOB) return &b->jobs[p->job];
  draft_job *j = &b->jobs[p->job = b->job_count++];
  *j = (draft_job){.slot = p->slot,
                   .base = p->told,
                   .first = b->token_count,
                   .first_place = b->place_count,
                   .whole = p->told == p->committed.length,
                   .sampling = msg_sampling(&p->options)};
  return j;
}

/* As much of C as has not been told and has room. */
static void tell(draft_batch *b, draft_session *p) {
  int32_t left = p->committed.length - p->told, room = DRAFT_CHUNK - b->token_count;
  draft_job *j = left > 0 && room > 0 ? job_of(b, p) : NULL;
  if (!j) return;
  j->count = left < room ? left : room;
  memcpy(b->tokens + j->first, p->committed.tokens + p->told, (size_t)j->count * sizeof *b->tokens);
  b->token_count += j->count;
  p->told += j->count;
  j->whole = p->told == p->committed.length;
}

/* Puts the questions about one session into its job. */
static void put(draft_batch *b, const wanted *q, draft_session *p, uint64_t *serial) {
  for (int32_t i = 0; i < q->count; i++) {
    draft_job *j = q->list[i].of == p ? job_of(b, p) : NULL;
    if (!j) continue;
    if (j->place_count == 0) j->first_place = b->place_count;
    j->place_count++;
    draft_place *place = &b->places[b->place_count++];
    place->serial = ++*serial;
    place->depth = expansion_path(&p->grown, q->list[i].place, place->path);
    expansion_ask(&p->grown, q->list[i].place, place->serial);
  }
}

bool questions_fill(draft_session *const *list, int32_t count, const draft_method *m, int32_t first,
                    uint64_t *serial, draft_batch *b) {
  wanted q = {.count = 0};
  b->job_count = b->place_count = b->token_count = 0;
  for (int32_t i = 0; i < count; i++) {
    draft_session *p = list[(first + i) % count];
    if (p) p->job = NO_JOB;
    if (p && draft_session_reads(p, m)) tell(b, p);
  }
  for (int32_t i = 0; i < count; i++)
    if (list[i]) draft_session_wants(list[i], m, &q);
  for (int32_t i = 0; i < count && q.count > 0; i++)
    if (list[i]) put(b, &q, list[i], serial);
  return b->job_count > 0;
}

static void take(draft_session *p, draft_method *m, const draft_answer *answer) {
  int32_t place;
  if (!expansion_awaits(&p->grown, answer->serial, &place)) return; /* what was asked about is gone */
  const calibration_table *rates = p->options.lockstep ? NULL : &m->matches;
  asked *a = expansion_of(&p->grown, place);
  a->serial = 0;
  a->count = answer->count;
  calibration_cases(answer, a->cases);
  for (int32_t i = 0; i < a->count; i++)
    a->list[i] =
        (draft_candidate){answer->list[i].token, draft_session_score(calibration_score(rates, a->cases[i]))};
  if (a->count > 0) pacing_answer(&m->costs, exp((double)a->list[0].score));
  p->answered = true;
}

void questions_take(draft_session *const *list, int32_t count, draft_method *m, const draft_results *r) {
  for (int32_t k = 0; k < r->answer_count; k++)
    for (int32_t i = 0; i < count; i++)
      if (list[i] && list[i]->slot == r->answers[k].slot) take(list[i], m, &r->answers[k]);
}
