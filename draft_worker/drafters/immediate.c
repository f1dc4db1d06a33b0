#include "draft_worker/drafters/immediate.h"

#include <assert.h>
#include <stdlib.h>

typedef struct immediate {
  const immediate_kind *kind;
  void *shared;
  immediate_session *sessions[DRAFTER_SLOTS_MAX]; /* NULL: not open */
  draft_reply reply;
  bool replied; /* `reply` has not been taken yet */
} immediate;

static void drop_session(immediate *d, int32_t slot) {
  if (d->sessions[slot]) d->kind->close(d->sessions[slot]);
  d->sessions[slot] = NULL;
}

static void close_session(void *self, int32_t slot) {
  immediate *d = self;
  if (d->sessions[slot] && d->kind->over) d->kind->over(d->sessions[slot]);
  drop_session(d, slot);
}

static int open_session(void *self, int32_t slot, const drafter_session *s) {
  immediate *d = self;
  drop_session(d, slot);
  d->sessions[slot] = d->kind->open(d->shared, s->committed, s->prompt_length, s->options);
  return d->sessions[slot] ? ERR_OK : ERR_NOMEM;
}

static int32_t advance(void *self, int32_t slot, const prefix *committed) {
  immediate *d = self;
  d->kind->advance(d->sessions[slot], committed);
  return committed->length;
}

/* What these drafters learn they learn from C itself. */
static void observe(void *self, const draft_candidate *list, int32_t count, int32_t token) {
  (void)self, (void)list, (void)count, (void)token;
}

static bool submit(void *self, const draft_query *q) {
  immediate *d = self;
  assert(!d->replied);
  d->reply.slot = q->slot;
  d->reply.handle = q->handle;
  d->reply.code = ERR_OK;
  d->reply.count = d->kind->candidates(d->sessions[q->slot], q->path, q->depth, d->reply.list);
  return d->replied = true;
}

static bool take(void *self, draft_reply *out) {
  immediate *d = self;
  if (!d->replied) return false;
  *out = d->reply;
  d->replied = false;
  return true;
}

static void free_all(void *self) {
  for (int32_t i = 0; i < DRAFTER_SLOTS_MAX; i++) drop_session(self, i);
  free(self);
}

static const drafter_kind immediate_drafter = {.budgets_ahead =
                                                   DRAFTER_AHEAD_MAX, /* a node costs next to nothing */
                                               .hope = 0,
                                               .least = TREE_DEPTH_MAX * TREE_SCORE_MIN,
                                               .replies = DRAFTER_REPLIES_BUT_ROOT, /* C may teach it more */
                                               .tokens_per_forward = 1,
                                               .goes_past_guess = true,
                                               .free = free_all,
                                               .open = open_session,
                                               .close = close_session,
                                               .advance = advance,
                                               .observe = observe,
                                               .submit = submit,
                                               .take = take};

int immediate_open(drafter *out, const immediate_kind *kind, void *shared, err *e) {
  *out = (drafter){0};
  immediate *d = calloc(1, sizeof *d);
  if (!d) return err_set(e, ERR_NOMEM, "no memory for a drafter");
  d->kind = kind;
  d->shared = shared;
  *out = (drafter){.kind = &immediate_drafter, .self = d, .method = kind->method, .queries_max = 1};
  return ERR_OK;
}
