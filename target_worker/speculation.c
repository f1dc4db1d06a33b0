#include "target_worker/speculation.h"

#include <stddef.h>

/* --- whether --- */

bool speculation_allowed(const speculation *s, bool lockstep) {
  return !s->disabled && (lockstep || pay_allows(&s->pay));
}

bool speculation_is_off(const speculation *s) {
  return s->pay.off;
}

bool speculation_is_quiet(const speculation *s) {
  return s->pay.off && s->pay.crowds;
}

const char *speculation_off_reason(const speculation *s, bool verified) {
  if (s->disabled) return s->disabled;
  if (!s->pay.off) return NULL;
  if (!s->pay.resting) return "the draft did not pay for itself";
  return verified ? NULL : "the answer was over before the draft could show that it pays";
}

double speculation_plain_us(const speculation *s, uint64_t plain_steps) {
  return plain_steps < PAY_CALIBRATE ? 0 : s->pay.plain_us_per_token;
}

/* --- how many --- */

int32_t speculation_offered(const speculation *s, const float *totals, int32_t count) {
  return width_allowed(&s->record, totals, count);
}

int32_t speculation_width(const speculation_shared *all, int32_t roots, const float *totals, int32_t count) {
  return width_best(&all->widths, roots, totals, count);
}

int32_t speculation_prompt_rows(const speculation_shared *all, int32_t left, int32_t most, bool *measures) {
  return width_piece(&all->widths, left, most, measures);
}

/* --- what is learnt --- */

void speculation_model_draft(speculation *s, const speculation_shared *all) {
  pay_crowd(&s->pay, &all->model_draft);
  s->history.computes = true;
}

void speculation_node_arrived(speculation *s, uint64_t after_us) {
  wait_arrived(&s->history, after_us);
}

uint64_t speculation_begin_step(speculation *s, uint64_t ready_us, uint64_t now, bool nodes,
                                bool drafts_done) {
  bool waited = s->wait_until_us > ready_us;
  s->waited_us = waited && now > ready_us ? now - ready_us : 0;
  if (waited && !nodes && drafts_done)
    wait_verified(&s->history, 1); /* the drafts answered that they have nothing */
  else if (waited && !nodes)
    wait_missed(&s->history);
  s->wait_until_us = 0;
  return s->waited_us;
}

void speculation_nodes_refused(speculation *s) {
  wait_verified(&s->history, 1); /* such nodes are not worth waiting for */
}

static double average(double old, double value) {
  return old == 0 ? value : old + (value - old) / 8;
}

/* What the forward cost this session. With others in it a plain row costs what it always does, and nodes as
 * much more as the forward took longer for them, in shares of such a row: where many sessions fill a forward,
 * a row more costs almost as much as a plain one. The averages of such forwards are taken: what disturbs one
 * of them is not the nodes' doing. */
static double share_us(const speculation *s, const speculation_shared *all, const speculation_step *step) {
  double usual = s->pay.plain_us_per_token;
  if (step->jobs == 1) return step->us;
  if (s->pay.crowds && step->steps == step->jobs) return step->us / step->jobs; /* it slows all rows */
  if (usual == 0) usual = step->us / step->jobs;
  if (step->nodes == 0 || step->rows > WIDTH_ROWS_MAX) return usual;
  double more = width_cost(&all->widths, step->rows) - width_cost(&all->widths, step->rows - step->nodes);
  double plain = width_cost(&all->widths, step->steps) / step->steps;
  return plain > 0 && more > 0 ? usual * (1 + more / plain) : usual;
}

void speculation_stepped(speculation *s, speculation_shared *all, const speculation_step *step) {
  double us = share_us(s, all, step);
  if (step->nodes || s->waited_us) s->verify_us = average(s->verify_us, us);
  if (!step->nodes) s->plain_us = average(s->plain_us, us);
  if (step->nodes) wait_verified(&s->history, step->tokens);
  if (s->record.steps == 0) width_begin(&s->record, &all->record);
  width_stepped(&s->record, step->tokens - 1);
  all->record = s->record;
  /* Waiting in vain is what speculation cost, not what a plain step costs: the next verify with nodes owes
   * it. */
  s->wait_owed_us += s->waited_us;
  pay_record(&s->pay, step->nodes, step->tokens, us + (step->nodes ? (double)s->wait_owed_us : 0));
  if (step->nodes) s->wait_owed_us = 0;
  if (s->pay.crowds) all->model_draft = s->pay;
}

void speculation_measured(speculation_shared *all, int32_t rows, double us) {
  width_measured(&all->widths, rows, us);
}

/* --- how long --- */

void speculation_wait(speculation *s, uint64_t now, bool draft_attached, bool another_can_run) {
  s->wait_until_us =
      now + wait_for(&s->history, draft_attached, another_can_run, 0, s->plain_us, s->verify_us);
}
