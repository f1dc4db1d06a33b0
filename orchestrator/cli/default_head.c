#include "orchestrator/cli/default_head.h"

#include "common/base/output_file.h"
#include "common/file/head_lookup.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* From the folder of the program. */
static const char *const folders_of_heads[] = {"../share/tandem/heads", "../../../heads"};
#define FOLDER_COUNT ((int)(sizeof folders_of_heads / sizeof *folders_of_heads))

void default_head_use_from(flags *f, const model_file *target, const char *const *folders, int count) {
  if (!f->draft_by_default || f->given.listen || f->request.budget == 0) return;
  for (int i = 0; i < count; i++) {
    if (!head_lookup_find(folders[i], target, f->head)) continue;
    f->given.draft = FLAGS_HEAD_DRAFT;
    f->given.draft_model = f->head;
    output_file_spare(f->head);
    return;
  }
}

void default_head_use(flags *f, const model_file *target) {
  char own[PATH_MAX], folders[FOLDER_COUNT][PATH_MAX];
  const char *list[FOLDER_COUNT];
  int count = 0;
  ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
  if (n <= 0) return;
  own[n] = 0;
  *strrchr(own, '/') = 0;
  for (int i = 0; i < FOLDER_COUNT; i++)
    if (snprintf(folders[count], PATH_MAX, "%s/%s", own, folders_of_heads[i]) < PATH_MAX) {
      list[count] = folders[count];
      count++;
    }
  default_head_use_from(f, target, list, count);
}
