#include "target_worker/target_arguments.h"

#include "common/base/output_file.h"
#include "common/base/program.h"
#include "wire/message.h"
#include <stdio.h>
#include <string.h>

#define DEFAULT_SESSIONS 4

static int take_own(void *context, flag_id id, const char *text, err *e) {
  target_arguments *a = context;
  return id == FLAG_pin ? cpus_parse(text, a->pin, &a->pin_count, e) : ERR_OK;
}

/* After all flags: one device, by whichever name. */
static int settle_device(void *context, err *e) {
  static const char *const isa_devices[] = {"cpu", "cpu:c", "cpu:avx2", "cpu:avx-vnni", "cpu:avx512"};
  flag_values *v = &((target_arguments *)context)->given;
  const char *by_isa = v->isa < 0 ? NULL : isa_devices[v->isa];
  char word[FLAG_WORD_MAX];
  if (v->device && by_isa && strcmp(v->device, by_isa) != 0 && flag_word(flag_of(FLAG_isa), v->isa, word))
    return err_set(e, ERR_ARG,
                   "--device %s and --isa %s (which is --device %s) are two devices: give one of them",
                   v->device, word, by_isa);
  if (!v->device) v->device = by_isa ? by_isa : WORKER_DEVICE_DEFAULT;
  bool processors = msg_same_device(wire_text(v->device), wire_text(WORKER_DEVICE_DEFAULT));
  if (v->busy_poll < 0) v->busy_poll = processors ? 0 : WORKER_BUSY_POLL_US;
  return ERR_OK;
}

static const char faults[] =
    "\nFor tests: the environment variable " TARGET_FAULT_VARIABLE " makes something go wrong. "
    "kv-rollback:AFTER:BY drops BY rows of the cache before the AFTER-th decode job, behind the session's "
    "back; "
    "slow-step:MS lets each of them wait; "
    "step-error:AFTER lets it and all later ones fail; verify-error:AFTER lets the AFTER-th verify with tree "
    "nodes "
    "fail; wrong-token:AFTER gives it a wrong token, which only --selfcheck finds.";

target_arguments target_arguments_parse(int argc, char **argv) {
  static char more[2000];
  target_arguments a = {.given = flag_defaults};
  flag_program reader = {.command = COMMAND_TARGET,
                         .more = more,
                         .values = &a.given,
                         .context = &a,
                         .own = take_own,
                         .whole = settle_device};
  a.given.threads = cpus_threads();
  a.given.sessions = DEFAULT_SESSIONS;
  snprintf(more, sizeof more, "%s%s", program_exit_help(), faults);
  worker_program_read(&reader, "tandem-target", argc, argv);
  output_file_spare(a.given.head);
  return a;
}
