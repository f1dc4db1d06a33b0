#include "orchestrator/cli/command_table.h"

#include <stddef.h>

#define SEE_STATUSES "\vExit statuses: see `tandem --help'."

/* clang-format off */
static const char run_text[] =
  "Answers one prompt (-: from stdin); without one, on a terminal, a conversation. stdout gets the answer "
  "alone, as it comes; a last line on stderr tells how fast it was." SEE_STATUSES;
static const char batch_text[] =
  "Answers a file of prompts (-: stdin, stdout), several at a time.\n\n"
  "A line of IN is an object with \"id\" and one of \"prompt\" (text), \"prompt_ids\" (token ids) or "
  "\"messages\" ([{\"role\", \"content\"}]); it may have options of its own: \"max_tokens\", \"stop\", "
  "\"temperature\", \"top_k\", \"top_p\", \"min_p\", \"repeat_penalty\", \"presence_penalty\", "
  "\"frequency_penalty\", \"logit_bias\" ({\"ID\": VALUE}), \"grammar\", \"seed\", \"draft\": false, "
  "\"budget\", \"force_single_token\": true. IN is read whole; OUT gets the answers in the order of IN. A "
  "bad line gives an object with finish_reason \"error\", and the others go on." SEE_STATUSES;
static const char api_text[] =
  "Serves the OpenAI API: /v1/chat/completions, /v1/completions, /v1/models, and /health. What a request "
  "does not say is as the flags say; without flags an answer may fill the context, at temperature 1, as "
  "OpenAI's do." SEE_STATUSES;
static const char serve_text[] =
  "Answers request lines (of IN or stdin, as `tandem batch' takes them) with tandem-target and tandem-draft "
  "programs that others start with --orchestrator ENDPOINT, as many as there are; they may come and go. "
  "Results go to stdout as they finish, until the end of IN." SEE_STATUSES;
static const char workers_text[] =
  "The workers of a running `tandem serve'. `drain' gives one no more sessions, while those that it has go "
  "on; `resume' undoes that. A WORKER is named by the first digits of its id, as far as they are unique. "
  "Where the server has keys, draining takes its --admin-key." SEE_STATUSES;
static const char top_text[] =
  "What the `tandem serve' at URL (default http://127.0.0.1:8080) does, each second anew: answers, tokens a "
  "second, acceptance, bytes to and from its workers, and who they are. q ends it." SEE_STATUSES;
static const char bench_text[] =
  "Measures what speculation is worth: answers every prompt plainly and with a draft, by turns.\n\n"
  "A line of PROMPTS is an object with one of \"prompt_ids\", \"messages\", \"turns\" (the first is asked) "
  "and \"prompt\", and perhaps \"category\"; other keys are ignored. Answers that differ from plain decoding "
  "give exit status 1." SEE_STATUSES;
static const char tokenize_text[] = "Text on stdin to token ids on stdout." SEE_STATUSES;
static const char detokenize_text[] =
  "Token ids on stdin, by blanks or as a JSON array, to text on stdout." SEE_STATUSES;
static const char doctor_text[] =
  "Looks at what tandem needs: processor, memory, sockets, worker programs, their devices and, with "
  "-m and -md, models. The exit status is 0 when all is well, else 1." SEE_STATUSES;
static const char convert_text[] =
  "Writes a draft head (a folder with config.json and safetensors in the EAGLE or the speculators layout, "
  "or a GGUF) as a GGUF that tandem and llama.cpp read, checked against its target." SEE_STATUSES;
static const char keygen_text[] =
  "Makes the keys by which programs know each other over tcp: those of all three roles, or of the given "
  "ones. On one machine no more is to do. Keys that are there already stay." SEE_STATUSES;
static const char status_text[] =
  "What runs now on this machine, by the ledger: orchestrators, their workers, sessions and "
  "speed." SEE_STATUSES;
static const char list_text[] = "The sessions that the ledger keeps, newest first." SEE_STATUSES;
static const char show_text[] = "One session: prompt, answer and figures." SEE_STATUSES;
static const char resume_text[] =
  "Goes on with a session that was interrupted, with the tokens that it would have had, and prints the "
  "rest." SEE_STATUSES;
static const char rollback_text[] =
  "Drops the end of an answer; `tandem session resume' goes on from there." SEE_STATUSES;
static const char export_text[] =
  "All of a session, as one JSON object on one line: `tandem session import' takes it into another ledger, "
  "and `tandem batch' repeats its request." SEE_STATUSES;
static const char import_text[] =
  "Takes sessions that `tandem session export' has written (-: from stdin), each whole or not at all. A "
  "wrong line is refused with its number, and the others go on." SEE_STATUSES;
static const char check_text[] =
  "Looks at every page, session and token of the ledger. The exit status is 0 when all is well, 1 when "
  "something is damaged: each damage gets a line that says what to do." SEE_STATUSES;
static const char repair_text[] =
  "Makes a whole ledger of what can be read of a damaged one, while no tandem runs. Every session keeps what "
  "its checksums prove; the damaged file is kept beside it." SEE_STATUSES;
static const char release_text[] =
  "Says that the process of another host that serves a session is dead for certain, so that all of its "
  "sessions are interrupted and may be resumed." SEE_STATUSES;
static const char end_text[] =
  "Ends a session that was interrupted or cut by a limit, or all that are old: `session list' leaves them "
  "out, and `resume' does not go on with them. What they hold stays, unless --delete is given." SEE_STATUSES;

static const char no_prompts[] = "which prompts? Give a file of JSON lines";
static const char no_prompt[] = "no prompt: give one in quotes, or - to read it from stdin";
static const char no_files[] = "two files are needed: IN.jsonl and OUT.jsonl (- for stdin, stdout)";
static const char no_head[] = "two paths are needed: the draft HEAD (a folder or a GGUF) and OUT.gguf";
static const char no_import[] = "which file? Give one that `tandem session export' wrote, or - for stdin";
static const char no_id[] =
  "which session? Give the first digits of its id: `tandem session list' tells them";

const command_table_row command_table[] = {
  [FLAGS_RUN] = {"run", "PROMPT\n-\n", run_text, 1, 1, no_prompt, false},
  [FLAGS_BATCH] = {"batch", "IN.jsonl OUT.jsonl", batch_text, 2, 2, no_files, false},
  [FLAGS_API] = {"serve", "", api_text, 0, 0, NULL, false},
  [FLAGS_WORKERS] = {"workers", "\ndrain WORKER\nresume WORKER", workers_text, 0, 2, NULL,
                     true},
  [FLAGS_TOP] = {"top", "[URL]", top_text, 0, 1, NULL, true},
  [FLAGS_SERVE] = {"serve-workers", "[IN.jsonl]", serve_text, 0, 1, NULL, false},
  [FLAGS_BENCH] = {"bench spec", "PROMPTS.jsonl", bench_text, 1, 1, no_prompts, false},
  [FLAGS_TOKENIZE] = {"tokenize", "", tokenize_text, 0, 0, NULL, false},
  [FLAGS_DETOKENIZE] = {"detokenize", "", detokenize_text, 0, 0, NULL, false},
  [FLAGS_DOCTOR] = {"doctor", "", doctor_text, 0, 0, NULL, true},
  [FLAGS_CONVERT] = {"convert-head", "HEAD OUT.gguf", convert_text, 2, 2, no_head, false},
  [FLAGS_KEYGEN] = {"keygen", "[orchestrator] [target] [draft]", keygen_text, 0, 3, NULL,
                    true},
  [FLAGS_STATUS] = {"status", "", status_text, 0, 0, NULL, true},
  [FLAGS_LIST] = {"session list", "", list_text, 0, 0, NULL, true},
  [FLAGS_SHOW] = {"session show", "ID", show_text, 1, 1, no_id, true},
  [FLAGS_RESUME] = {"session resume", "ID", resume_text, 1, 1, no_id, true},
  [FLAGS_ROLLBACK] = {"session rollback", "ID", rollback_text, 1, 1, no_id, true},
  [FLAGS_IMPORT] = {"session import", "FILE\n-\n", import_text, 1, 1, no_import, true},
  [FLAGS_CHECK] = {"session check", "", check_text, 0, 0, NULL, true},
  [FLAGS_REPAIR] = {"session repair", "", repair_text, 0, 0, NULL, true},
  [FLAGS_EXPORT] = {"session export", "ID\n--all", export_text, 1, 1, no_id, true},
  [FLAGS_RELEASE] = {"session release", "ID", release_text, 1, 1, no_id, true},
  [FLAGS_END] = {"session end", "ID\n--older-than AGE", end_text, 1, 1, no_id, true},
  [FLAGS_TARGET] = {.name = "tandem-target"}, /* for `tandem config', as the next one */
  [FLAGS_DRAFT] = {.name = "tandem-draft"},
};
/* clang-format on */
