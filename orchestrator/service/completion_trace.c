#include "orchestrator/service/completion_trace.h"

#include <stdio.h>

void completion_trace_begin(completion_trace *t, trace_file *file, uint64_t session, uint64_t came_us,
                            int32_t length, uint64_t now_us) {
  char name[48];
  if (!came_us) came_us = now_us;
  *t = (completion_trace){.file = file, .came_us = came_us, .begun_us = now_us, .length = length};
  if (!file) return;
  snprintf(name, sizeof name, "session %016llx", (unsigned long long)session);
  t->lane = trace_file_lane(file, name);
  t->ledger_lane = trace_file_lane(file, "ledger");
  if (now_us > came_us) trace_file_span(file, t->lane, "queue", came_us, now_us, NULL);
}

static int32_t accepted_of(const sessions_view *v, int32_t from) {
  int32_t count = 0;
  for (int32_t i = from; v->accepted && i < v->length; i++) count += v->accepted[i];
  return count;
}

static void take_tokens(completion_trace *t, const sessions_view *v, uint64_t now_us) {
  bool first = !t->tokens_us, moved = v->epoch != t->epoch;
  json_t *args = json_pack("{s:i, s:i, s:i}", "tokens", v->length - t->length, "accepted",
                           accepted_of(v, t->length), "length", v->length);
  if (first) json_object_set_new(args, "prompt", json_integer(v->prompt_length));
  if (moved) json_object_set_new(args, "epoch", json_integer(v->epoch));
  trace_file_span(t->file, t->lane,
                  moved   ? "failover"
                  : first ? "prefill"
                          : "round",
                  first ? t->begun_us : t->tokens_us, now_us, args);
  t->tokens_us = now_us;
  t->epoch = v->epoch;
}

/* What comes meanwhile is the next span's. */
static void watch_ledger(completion_trace *t, const sessions_view *v, uint64_t now_us) {
  if (t->waiting_us && v->logged >= t->waiting_for) {
    trace_file_span(t->file, t->ledger_lane, "ledger", t->waiting_us, now_us,
                    json_pack("{s:i}", "tokens", t->waiting_for - t->waiting_from));
    t->waiting_us = 0;
  }
  if (t->waiting_us || v->logged >= v->length) return;
  t->waiting_us = now_us;
  t->waiting_from = v->logged;
  t->waiting_for = v->length;
}

void completion_trace_update(completion_trace *t, const sessions_view *v, uint64_t now_us) {
  if (!t->file) return;
  if (!t->epoch) t->epoch = v->epoch;
  if (v->length > t->length) take_tokens(t, v, now_us);
  t->length = v->length;
  watch_ledger(t, v, now_us);
}

static const char *name_of(wire_finish finish) {
  return finish == WIRE_FINISH_LENGTH      ? "length"
         : finish == WIRE_FINISH_CANCELLED ? "cancelled"
         : finish == WIRE_FINISH_ERROR     ? "error"
                                           : "stop";
}

void completion_trace_end(completion_trace *t, wire_finish finish, uint64_t now_us) {
  if (!t->file) return;
  trace_file_span(t->file, t->lane, "answer", t->came_us, now_us,
                  json_pack("{s:s, s:i}", "finish", name_of(finish), "length", t->length));
  t->file = NULL;
}
