/* commands.h - the user's commands. Each gets its own argv, argv[0] being "tandem COMMAND", and returns a
 * status of exit_status.h. */
#pragma once

#include "common/base/err.h"
#include "orchestrator/cli/flags.h"
#include "common/base/exit_status.h"
#include "orchestrator/service/request_queue.h"
#include <stdio.h>

int command_run(int argc, char **argv);
int command_batch(int argc, char **argv);
int command_serve(int argc, char **argv);
int command_serve_workers(int argc, char **argv);
int command_tokenize(int argc, char **argv);
int command_detokenize(int argc, char **argv);
int command_convert_head(int argc, char **argv);
int command_keygen(int argc, char **argv);
int command_config(int argc, char **argv);
int command_doctor(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_bench_speculation(int argc, char **argv);
int command_session(int argc, char **argv);
int command_status(int argc, char **argv);
int command_operate(int argc, char **argv); /* workers and top */

/* `run` without a prompt on a terminal. */
int command_chat(flags *f);

/* Goes on with a session of the ledger; the flags are those that `run` takes. */
int command_resume(flags *f, const ledger_session *resume);

/* ---- what they share ---- */

/* Becomes another program of tandem's, with the same argv; returns only where that fails, with its status. */
int command_hand_over(const char *program, char **argv);

/* Says what is wrong, on stderr; returns `code`. */
int command_error(exit_status code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* For what prints texts of answers, prompts or files: none of it commands a terminal (terminal.h). */
void command_clean_stdout(void);
/* Exit status of a command that a signal ended. */
exit_status command_signal_status(int signal_number);
/* Prints the trouble of a service, unless its target has said all of it; STATUS_WORKER. */
exit_status command_trouble(const service *s, const err *trouble);
/* Exit status for an error of service_serve, or of the ledger. */
exit_status command_serve_status(int code);
/* Opens a model and reads its vocabulary (a file without weights will do), and says what is wrong with it.
 * Returns STATUS_OK, STATUS_FILE or STATUS_FAILED. */
int command_open_model(text_model *m, const char *path);
/* The options of a service that follow from these flags, for sessions of `context` tokens; the command sets
 * the callbacks itself. */
service_options command_service_options(const flags *f, int32_t context, const logger *log);
/* Sets *out to the context of a session, for which --ctx asks `wanted` tokens (0: the default). Returns
 * STATUS_OK or STATUS_USAGE. */
int command_context(const text_model *m, int32_t wanted, int32_t *out);
/* Says on stderr why the prompt cannot be answered, in terms of the flags; returns the exit status for it. */
int command_prompt_error(const err *e);
/* Where closing lines go: to stderr, or into the log, where that is JSON. */
typedef struct command_closing {
  FILE *collected; /* NULL: they go to stderr as they are printed */
  char *text;
  size_t size;
} command_closing;
FILE *command_closing_open(command_closing *c, const flags *f);
void command_closing_close(command_closing *c);
/* Prints the closing lines for many requests; returns their exit status. */
int command_end_queue(const request_queue *q, const flags *f);
/* Warns that the vocabulary has no token for so many bytes of a prompt; does nothing for 0. */
void command_warn_dropped(size_t bytes);
