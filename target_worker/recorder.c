#include "target_worker/recorder.h"

#include "common/base/output_file.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

int recorder_open(recorder *r, const char *path, err *e) {
  r->file = output_file_open(path, "w", e);
  return r->file ? ERR_OK : e->code;
}

void recorder_close(recorder *r) {
  if (r->file) fclose(r->file);
  r->file = NULL;
}

static void write_nodes(FILE *out, const session *s) {
  int32_t slots[TREE_NODE_MAX], parents[TREE_NODE_MAX];
  const tree *t = &s->drafts.tree;
  int32_t count = s->drafts.has_tree ? tree_select(t, TREE_NODE_MAX, TREE_DEPTH_MAX, slots, parents) : 0;
  fputs("\"nodes\": [", out);
  for (int32_t i = 0; i < count; i++)
    fprintf(out, "%s[%d, %d, %.4g]", i ? ", " : "", parents[i], t->nodes[slots[i]].token,
            (double)t->nodes[slots[i]].score);
  fputs("], \"sampled\": [", out);
}

static void write_tree(FILE *out, const schedule_pick *pick) {
  fputs("\"tree\": [", out);
  for (int32_t i = 0; i < pick->rows; i++)
    fprintf(out, "%s[%d, %d]", i ? ", " : "", pick->parents[i], pick->tokens[i]);
  fputs("], ", out);
}

void recorder_step(void *context, const session *s, const schedule_pick *pick, const speculation_forward *f,
                   const engine_result *x) {
  FILE *out = ((recorder *)context)->file;
  const speculation *p = &s->speculation;
  fprintf(out, "{\"session\": \"%016" PRIx64 "\", \"position\": %d, ", s->id, s->committed.length);
  write_tree(out, pick);
  write_nodes(out, s);
  for (int32_t i = 0; i < x->sampled_count; i++) fprintf(out, "%s%d", i ? ", " : "", x->sampled[i]);
  fprintf(
      out,
      "], \"verified\": %d, \"arrived_us\": %.0f, \"waited_us\": %.0f, \"forward_us\": %.0f, \"steps\": %d, "
      "\"rows\": %d, \"reads\": %.0f, \"prompts\": %s, \"colocated\": %s, \"on\": %s}\n",
      x->node_count, p->arrived_us, p->step.waited_us, f->us, f->steps, f->rows, f->reads,
      f->prompt_rows > 0 ? "true" : "false", p->policy.colocated ? "true" : "false",
      speculation_is_off(p) ? "false" : "true");
}
