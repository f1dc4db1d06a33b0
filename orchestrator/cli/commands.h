/* commands.h - the user's commands. Each gets its own argv, argv[0] being "tandem COMMAND", and returns a
 * status of status.h. */
#pragma once

#include "common/base/err.h"
#include "orchestrator/cli/flags.h"
#include "orchestrator/ledger/ledger_query.h"
#include "orchestrator/cli/status.h"
#include "orchestrator/service/text_model.h"

int command_run(int argc, char **argv);
int command_batch(int argc, char **argv);
int command_serve(int argc, char **argv);
int command_tokenize(int argc, char **argv);
int command_detokenize(int argc, char **argv);
int command_doctor(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_session(int argc, char **argv);
int command_status(int argc, char **argv);

/* `run` without a prompt on a terminal. */
int command_chat(const flags *f);

/* Goes on with a session of the ledger: flags as `run` takes them. */
int command_resume(const flags *f, const ledger_session *resume);

/* What they share. */

/* Says what is wrong, on stderr; returns `code`. */
int command_error(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Exit status of a command that a signal ended. */
status command_signal_status(int signal_number);
/* Exit status for an error of service_serve, or of the ledger. */
status command_serve_status(int code);
/* Opens a model and reads its vocabulary, which may be all that there is, with messages: STATUS_OK,
 * STATUS_MODEL or STATUS_FAILED. */
int command_open_model(text_model *m, const char *path);
/* One counted warning for bytes of a prompt that have no token. */
void command_warn_dropped(size_t bytes);
