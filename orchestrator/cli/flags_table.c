#include "orchestrator/cli/flags_table.h"

#include "common/file/model_config.h"
#include "wire/message.h"

/* clang-format off */
#define OPTION_MODEL \
  {"model", 'm', "FILE", 0, "the model: a GGUF file (scripts/get_model.sh fetches one), or a folder with " \
   "config.json and safetensors", 1}
#define OPTION_NO_SPECIAL \
  {"no-special", KEY_NO_SPECIAL, 0, 0, "special tokens written in the text are plain text", 1}
#define OPTION_JSON       {"json", KEY_JSON, 0, 0, "JSON on stdout", 2}
#define OPTIONS_LOG \
  {"trace", KEY_TRACE, "FILE", 0, "write what happened when, for Chrome's about:tracing or Perfetto", 9}, \
  {"log-format", KEY_LOG_FORMAT, "text|json", 0, "of stderr; json: an object a line (default text)", 9}, \
  {"verbose", 'v', 0, 0, "say more on stderr", 9}
#define OPTION_LEDGER \
  {"ledger", KEY_LEDGER, "FILE|none", 0, \
   "where prompts and answers are kept (default: batch none, else ~/.local/state/tandem)", 8}
#define OPTION_KEYS \
  {"keys", KEY_KEYS, "DIR", 0, "folder of the keys for tcp (default: ~/.config/tandem/keys)", 6}
#define OPTION_LEDGER_MODE \
  {"ledger-mode", KEY_LEDGER_MODE, "normal|durable|fast", 0, \
   "text is shown once a crash cannot lose it (normal, default), once a power cut cannot (durable), or at " \
   "once (fast: what was shown last may be lost)", 8}
#define OPTIONS_LISTEN \
  {"listen", KEY_LISTEN, "ENDPOINT", 0, "wait at ipc://PATH or tcp://HOST:PORT for workers that others " \
   "start with --orchestrator ENDPOINT, instead of starting them", 6}, \
  {"wait", KEY_WAIT, "SECONDS", 0, \
   "give up when there has been no target for so long; 0 (default): wait for ever", 6}, \
  {"insecure-bind", KEY_INSECURE, 0, 0, \
   "no keys at a tcp address: neither encrypted nor authenticated; workers need the flag too", 6}, \
  OPTION_KEYS
#define OPTION_SERVER_KEY {"api-key", KEY_API_KEY, "KEY", 0, "a key that it knows, if it asks for one", 1}
#define OPTIONS_MODEL_DRAFT \
  {"model-draft", KEY_MODEL_DRAFT, "FILE", 0, \
   "-md FILE: a smaller model of the same family as draft, or an EAGLE-3 head", 4}, \
  {"draft-type", KEY_DRAFT_TYPE, "TYPE", 0, "of a head's weights: q8_0 (default), q4_1 or bf16", 4}, \
  {"draft-layers", KEY_DRAFT_LAYERS, "N", 0, "draft with the first N layers of it, or of the model", 4}, \
  {"draft-device", KEY_DRAFT_DEVICE, "NAME", 0, "of tandem-draft's model (default cpu)", 4}, \
  {"draft-kv-memory", KEY_DRAFT_KV_MEMORY, "SIZE", 0, "most memory of its cache, such as 2G", 4}, \
  {"draft-threads", KEY_DRAFT_THREADS, "N", 0, "of tandem-draft (default: one a physical core)", 4}, \
  {"draft-ctx", KEY_DRAFT_CONTEXT, "N", 0, "longest session it drafts for (default: that of --ctx)", 4}
#define OPTIONS_KV \
  {"kv", KEY_KV, "static|virtual", 0, "cache: a part a session, or shared blocks (default static)", 5}, \
  {"kv-blocks", KEY_KV_BLOCKS, "N", 0, "16-token blocks of a virtual cache (default: memory as static)", 5}, \
  {"kv-memory", KEY_KV_MEMORY, "SIZE", 0, "most memory of the cache, such as 2G (default: what it needs)", 5}
#define OPTIONS_THREADS \
  {"device", KEY_DEVICE, "NAME", 0, "what computes, of `tandem --list-devices' (default cpu)", 5}, \
  {"threads", KEY_THREADS, "N", 0, "of tandem-target (default: one a physical core)", 5}, \
  {"pin", KEY_PIN, "none|auto|LIST", 0, "keep these threads on processors (default none)", 5}

/* Of every command that answers requests. */
#define OPTIONS_GENERATE \
  OPTION_MODEL, \
  {"system", KEY_SYSTEM, "TEXT", 0, "system message (default: the template's own)", 1}, \
  {"chat-template", KEY_TEMPLATE, "NAME", 0, "instead of the file's own (a wrong NAME lists them)", 1}, \
  {"raw", KEY_RAW, 0, 0, "no chat template: the text itself is continued", 1}, \
  OPTION_NO_SPECIAL, \
  {0, 0, 0, 0, "The answer:", 2}, \
  {"max-tokens", KEY_MAX_TOKENS, "N", 0, "most tokens of an answer (default 256; -1: all that fit)", 2}, \
  {"stop", KEY_STOP, "TEXT", PROGRAM_OPTION_REPEATED, \
   "ends the answer before TEXT; may be given up to 16 times", 2}, \
  {"grammar", KEY_GRAMMAR, "TEXT", 0, "the answer follows this grammar, in llama.cpp's words (GBNF)", 2}, \
  {"grammar-file", KEY_GRAMMAR_FILE, "FILE", 0, "or that of FILE", 2}, \
  {"json-schema", KEY_JSON_SCHEMA, "JSON", 0, \
   "or is JSON that this schema allows, such as {\"type\": \"object\"}", 2}, \
  {"json-schema-file", KEY_JSON_SCHEMA_FILE, "FILE", 0, "or that of FILE", 2}, \
  {"json", KEY_JSON, 0, 0, "one JSON object on stdout instead of the text", 2}, \
  {0, 0, 0, 0, "Sampling:", 3}, \
  {"temp", KEY_TEMP, "T", 0, "temperature; 0 (default): always the likeliest token", 3}, \
  {"top-k", KEY_TOP_K, "K", 0, "among the K likeliest; 0 (default): off", 3}, \
  {"top-p", KEY_TOP_P, "P", 0, "among the likeliest that reach P together; 1 (default): off", 3}, \
  {"min-p", KEY_MIN_P, "P", 0, "among those with P times the likeliest's chance; 0 (default): off", 3}, \
  {"repeat-penalty", KEY_PENALTY, "R", 0, "against tokens seen before; 1 (default): off", 3}, \
  {"presence-penalty", KEY_PRESENCE, "P", 0, \
   "off the logit of a token that the answer has; -2 to 2 (default 0)", 3}, \
  {"frequency-penalty", KEY_FREQUENCY, "P", 0, \
   "off the logit of a token, for each time that the answer has it; -2 to 2 (default 0)", 3}, \
  {"logit-bias", KEY_BIAS, "ID(+|-)VALUE", PROGRAM_OPTION_REPEATED, \
   "added to the logit of a token, such as 15043-100; may be given up to 512 times", 3}, \
  {"seed", KEY_SEED, "N", 0, "of the random numbers (default: a random one, named in the result)", 3}, \
  {0, 0, 0, 0, "Speculation (never changes a token):", 4}, \
  {"draft", KEY_DRAFT, "METHOD", 0, \
   "ngram, eagle3, model, none, or replay:FILE:RATE[:S] - FILE an output of `tandem batch`, for tests; " \
   "several feed one tree (default: eagle3,ngram where heads/ has a head for the model, else ngram)", 4}, \
  OPTIONS_MODEL_DRAFT, \
  {"budget", KEY_BUDGET, "N", 0, "most draft tokens in one verification, 0 to 64 (default 15)", 4}, \
  {"pace", KEY_PACE, "free|lockstep", 0, "lockstep: wait for every draft, for tests (default free)", 4}, \
  {"selfcheck", KEY_SELFCHECK, "N", 0, "decode every Nth round again plainly and compare; 0: off", 4}, \
  {"force-single-token", KEY_SINGLE, 0, 0, \
   "one token a forward: drafts are verified, none is accepted, to compare with", 4}, \
  {0, 0, 0, 0, "Work:", 5}, \
  OPTIONS_THREADS, \
  {"ctx", KEY_CONTEXT, "N", 0, "most tokens of prompt and answer (default 4096 or the model's)", 5}, \
  OPTIONS_KV, \
  {"math", KEY_MATH, "int8|f32", 0, "activations of the forward pass (default int8)", 5}, \
  {"repack-cache", KEY_REPACK_CACHE, "DIR", 0, \
   "keep the packed weights in DIR: later starts are faster and share them (default: no)", 5}, \
  OPTION_LEDGER, OPTION_LEDGER_MODE, OPTIONS_LOG, PROGRAM_OPTION_CONFIG(9)

#define OPTION_TREE \
  {"tree", KEY_TREE, "FILE", OPTION_ARG_OPTIONAL, \
   "at the end print the draft tree of every verification, with what was accepted, to stderr or FILE", 4}

static const struct argp_option run_options[] = {
  OPTION_TREE,
  OPTIONS_GENERATE, OPTIONS_LISTEN,
  {"compare", KEY_COMPARE, 0, 0,
   "answer plainly and then with the draft: tell both speeds, and whether the tokens are the same", 4},
  {"show", KEY_SHOW, "never|auto|always", OPTION_ARG_OPTIONAL,
   "colour what came from the draft and what from the target, with a live line of figures; auto: where a "
   "terminal can (default: auto in a conversation, else never; --show alone: auto)", 4},
  {"prompt", KEY_PROMPT, "TEXT", OPTION_HIDDEN, "PROMPT, as llama.cpp takes it", 1},
  {0}};
static const struct argp_option serve_options[] = {
  OPTIONS_GENERATE, OPTIONS_LISTEN,
  {"sessions", KEY_SESSIONS, "N", 0,
   "answers at a time (default 64, and never more than the targets take)", 5},
  {0}};
static const struct argp_option api_options[] = {
  {0, 0, 0, 0, "The server:", -1},
  {"host", KEY_HOST, "NAME", 0, "listen at this address (default 127.0.0.1: this machine only)", -1},
  {"port", KEY_PORT, "N", 0, "and at this port (default 8080); 0: any free one", -1},
  {"workers", KEY_WORKERS, "own|wait", 0,
   "own (default): start a target and a draft; wait: for those that register at --listen", -1},
  {"sessions", KEY_SESSIONS, "N", 0, "answers at a time (default 4); more requests wait", -1},
  {"api-key", KEY_API_KEY, "KEY,KEY,...", 0, "answer only who sends one of these (default: everybody)", -1},
  {"api-key-file", KEY_API_KEY_FILE, "FILE", 0, "or one of its lines", -1},
  {"admin-key", KEY_ADMIN_KEY, "KEY", 0,
   "drain workers only for who sends this one (default: for everybody, and for nobody where there are API "
   "keys)", -1},
  {"cors-origin", KEY_CORS, "ORIGIN", 0, "web pages from there may ask; *: all (default: none)", -1},
  {"ssl-cert-file", KEY_SSL_CERT, "FILE", 0, "speak TLS (https) with this certificate or chain, in PEM", -1},
  {"ssl-key-file", KEY_SSL_KEY, "FILE", 0, "and its private key, in PEM", -1},
  {"max-waiting", KEY_MAX_WAITING, "N", 0, "requests that wait, of each key (default 128); more get 429", -1},
  OPTIONS_GENERATE, OPTIONS_LISTEN,
  {0}};
static const struct argp_option workers_options[] = {
  {"url", KEY_URL, "URL", 0, "of the running `tandem serve' (default " FLAGS_URL_DEFAULT ")", 1},
  OPTION_SERVER_KEY, OPTION_JSON, {0}};
static const struct argp_option top_options[] = {
  OPTION_SERVER_KEY,
  {"once", KEY_ONCE, 0, 0, "print one screen of text after a second, as where stdout is no terminal", 2},
  {0}};
static const struct argp_option batch_options[] = {
  OPTIONS_GENERATE, OPTIONS_LISTEN,
  {"sessions", KEY_SESSIONS, "N", 0, "answers at a time (default 4)", 5},
  {0}};
static const struct argp_option bench_options[] = {
  OPTION_TREE,
  OPTIONS_GENERATE,
  {"methods", KEY_METHODS, "LIST", 0,
   "drafts to try, such as ngram,model+ngram; + joins those that feed one tree (default: --draft)", 4},
  {"trees", KEY_TREES, "LIST", 0,
   "sizes to try in lockstep, such as chain5,7,15,31 (default: as --pace and --budget say)", 4},
  {"temps", KEY_TEMPS, "LIST", 0, "temperatures to try, such as 0,0.8,1 (default: --temp)", 4},
  {"repeat", KEY_REPEAT, "N", 0, "go through the prompts N times (default 1)", 5},
  {0}};
static const struct argp_option tokenize_options[] = {
  OPTION_MODEL, OPTION_NO_SPECIAL, {"json", KEY_JSON, 0, 0, "{token_ids, tokens}", 2}, {0}};
static const struct argp_option detokenize_options[] = {OPTION_MODEL, {0}};
static const struct argp_option doctor_options[] = {
  OPTION_MODEL,
  {"model-draft", KEY_MODEL_DRAFT, "FILE", 0, "-md FILE: a draft's model: does it fit the model of -m?", 1},
  OPTION_KEYS, OPTION_JSON,
  {0}};
static const struct argp_option convert_options[] = {
  {"model", 'm', "TARGET.gguf", 0, "the model that the head drafts for: its tokenizer is copied", 1},
  {"type", KEY_TYPE, "f16|bf16|q8_0|q4_1", 0, "of the matrices (default q8_0, which costs no tokens)", 2},
  {"head-type", KEY_HEAD_TYPE, "f16|bf16|q8_0|q4_1", 0, "of the output matrix (default: as --type)", 2},
  {"rows", KEY_ROWS, "N", 0, "keep the first N tokens of the draft vocabulary: the most frequent ones, where "
   "the head orders them by frequency (default: all)", 2},
  {"map", KEY_MAP, 0, 0, "add the map that makes rows for tokens which the draft vocabulary lacks (minutes "
   "for a wide model)", 2},
  {"calibration", KEY_CALIBRATION, "FILE", 0, "what scripts/calibrate_head.py has measured, in place of "
   "HEAD's own", 2},
  {0}};
static const struct argp_option keygen_options[] = {
  OPTION_KEYS,
  {"name", KEY_NAME, "NAME", 0, "what the keys are called in the list, for people (default: this host's)", 6},
  {0}};
static const struct argp_option status_options[] = {OPTION_LEDGER, OPTION_JSON, {0}};
static const struct argp_option list_options[] = {
  OPTION_LEDGER, OPTION_JSON, {"limit", KEY_LIMIT, "N", 0, "the N newest (default 20); 0: all", 2},
  {"all", KEY_ALL, 0, 0, "those that were ended, too", 2}, {0}};
static const struct argp_option show_options[] = {OPTION_MODEL, OPTION_LEDGER, OPTION_JSON, {0}};
static const struct argp_option export_options[] = {
  OPTION_MODEL, OPTION_LEDGER,
  {"all", KEY_ALL, 0, 0, "instead of an ID: every session, a line each", 2},
  {"output", KEY_OUTPUT, "FILE", 0, "write to FILE, which is complete once it is there (default: stdout)", 2},
  {0}};
static const struct argp_option import_options[] = {
  OPTION_LEDGER,
  {"replace", KEY_REPLACE, 0, 0, "also what is in the ledger already and differs (default: refuse it)", 2},
  {0}};
static const struct argp_option check_options[] = {OPTION_LEDGER, OPTION_JSON, {0}};
static const struct argp_option repair_options[] = {OPTION_LEDGER, {0}};
static const struct argp_option rollback_options[] = {
  OPTION_LEDGER, {"to", KEY_TO, "N", 0, "tokens of the answer that stay", 2}, {0}};
static const struct argp_option end_options[] = {
  OPTION_LEDGER,
  {"older-than", KEY_OLDER, "AGE", 0,
   "instead of an ID: all that nothing has changed for so long (30d, 12h, 45m, 0s) and that nobody "
   "serves", 2},
  {"delete", KEY_DELETE, 0, 0, "and forget it: prompt, answer and all", 2},
  {0}};
static const struct argp_option release_options[] = {OPTION_LEDGER, {0}};
static const struct argp_option resume_options[] = {
  OPTION_MODEL, OPTION_LEDGER, OPTION_LEDGER_MODE,
  {"max-tokens", KEY_MAX_TOKENS, "N", 0, "N tokens more (default: what the request has left)", 2},
  {"whole", KEY_WHOLE, 0, 0, "print the answer from its beginning, not only the rest", 2},
  {"json", KEY_JSON, 0, 0, "one JSON object on stdout, with the whole answer", 2},
  {"draft", KEY_DRAFT, "METHOD", 0, "as in `tandem run' (default: as before, with the same model)", 4},
  OPTIONS_MODEL_DRAFT,
  {"budget", KEY_BUDGET, "N", 0, "as in `tandem run' (default: as before)", 4},
  OPTIONS_THREADS,
  {"repack-cache", KEY_REPACK_CACHE, "DIR", 0, "keep the packed weights in DIR", 5},
  OPTIONS_KV, OPTIONS_LISTEN, OPTIONS_LOG, PROGRAM_OPTION_CONFIG(9),
  {0}};
/* clang-format on */

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
  "What the `tandem serve' at URL (default " FLAGS_URL_DEFAULT ") does, each second anew: answers, tokens a "
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

const flags_table_command flags_table_commands[] = {
  [FLAGS_RUN] = {"run", run_options, "PROMPT\n-\n", run_text, 1, 1, no_prompt, false},
  [FLAGS_BATCH] = {"batch", batch_options, "IN.jsonl OUT.jsonl", batch_text, 2, 2, no_files, false},
  [FLAGS_API] = {"serve", api_options, "", api_text, 0, 0, NULL, false},
  [FLAGS_WORKERS] = {"workers", workers_options, "\ndrain WORKER\nresume WORKER", workers_text, 0, 2, NULL,
                     true},
  [FLAGS_TOP] = {"top", top_options, "[URL]", top_text, 0, 1, NULL, true},
  [FLAGS_SERVE] = {"serve-workers", serve_options, "[IN.jsonl]", serve_text, 0, 1, NULL, false},
  [FLAGS_BENCH] = {"bench spec", bench_options, "PROMPTS.jsonl", bench_text, 1, 1, no_prompts, false},
  [FLAGS_TOKENIZE] = {"tokenize", tokenize_options, "", tokenize_text, 0, 0, NULL, false},
  [FLAGS_DETOKENIZE] = {"detokenize", detokenize_options, "", detokenize_text, 0, 0, NULL, false},
  [FLAGS_DOCTOR] = {"doctor", doctor_options, "", doctor_text, 0, 0, NULL, true},
  [FLAGS_CONVERT] = {"convert-head", convert_options, "HEAD OUT.gguf", convert_text, 2, 2, no_head, false},
  [FLAGS_KEYGEN] = {"keygen", keygen_options, "[orchestrator] [target] [draft]", keygen_text, 0, 3, NULL,
                    true},
  [FLAGS_STATUS] = {"status", status_options, "", status_text, 0, 0, NULL, true},
  [FLAGS_LIST] = {"session list", list_options, "", list_text, 0, 0, NULL, true},
  [FLAGS_SHOW] = {"session show", show_options, "ID", show_text, 1, 1, no_id, true},
  [FLAGS_RESUME] = {"session resume", resume_options, "ID", resume_text, 1, 1, no_id, true},
  [FLAGS_ROLLBACK] = {"session rollback", rollback_options, "ID", rollback_text, 1, 1, no_id, true},
  [FLAGS_IMPORT] = {"session import", import_options, "FILE\n-\n", import_text, 1, 1, no_import, true},
  [FLAGS_CHECK] = {"session check", check_options, "", check_text, 0, 0, NULL, true},
  [FLAGS_REPAIR] = {"session repair", repair_options, "", repair_text, 0, 0, NULL, true},
  [FLAGS_EXPORT] = {"session export", export_options, "ID\n--all", export_text, 1, 1, no_id, true},
  [FLAGS_RELEASE] = {"session release", release_options, "ID", release_text, 1, 1, no_id, true},
  [FLAGS_END] = {"session end", end_options, "ID\n--older-than AGE", end_text, 1, 1, no_id, true},
};
/* clang-format on */

static const char *const ledger_modes[] = {"normal", "durable", "fast"}; /* by ledger_mode */
static const char *const worker_choices[] = {"own", "wait"};
static const char *const types[] = {"f16", "bf16", "q8_0", "q4_1"}; /* by flags_type */

/* clang-format off */
const program_flag flags_table_values[] = {
  PROGRAM_FLAG_TEXT('m', flags, workers.model),
  PROGRAM_FLAG_TEXT(KEY_DRAFT, flags, workers.draft),
  PROGRAM_FLAG_TEXT(KEY_MODEL_DRAFT, flags, workers.draft_model),
  PROGRAM_FLAG_TEXT(KEY_DRAFT_TYPE, flags, workers.draft_type),
  PROGRAM_FLAG_TEXT(KEY_DEVICE, flags, workers.device),
  PROGRAM_FLAG_TEXT(KEY_DRAFT_DEVICE, flags, workers.draft_device),
  PROGRAM_FLAG_SIZE(KEY_KV_MEMORY, flags, workers.kv_memory, "--kv-memory"),
  PROGRAM_FLAG_SIZE(KEY_DRAFT_KV_MEMORY, flags, workers.draft_kv_memory, "--draft-kv-memory"),
  PROGRAM_FLAG_TEXT(KEY_PIN, flags, workers.pin),
  PROGRAM_FLAG_TEXT(KEY_REPACK_CACHE, flags, workers.repack_cache),
  PROGRAM_FLAG_TEXT(KEY_CALIBRATION, flags, calibration),
  PROGRAM_FLAG_TEXT(KEY_HOST, flags, host),
  PROGRAM_FLAG_TEXT(KEY_LISTEN, flags, listen),
  PROGRAM_FLAG_TEXT(KEY_KEYS, flags, keys),
  PROGRAM_FLAG_TEXT(KEY_NAME, flags, name),
  PROGRAM_FLAG_SWITCH('v', flags, workers.verbose),
  PROGRAM_FLAG_TEXT(KEY_TRACE, flags, workers.trace),
  PROGRAM_FLAG_CHOICE(KEY_LOG_FORMAT, flags, workers.log_format, "--log-format", log_format_words),
  PROGRAM_FLAG_SWITCH(KEY_RAW, flags, request.raw),
  PROGRAM_FLAG_SWITCH(KEY_NO_SPECIAL, flags, request.no_special),
  PROGRAM_FLAG_SWITCH(KEY_MAP, flags, map),
  PROGRAM_FLAG_SWITCH(KEY_WHOLE, flags, whole),
  PROGRAM_FLAG_SWITCH(KEY_DELETE, flags, forget),
  PROGRAM_FLAG_SWITCH(KEY_ALL, flags, all),
  PROGRAM_FLAG_SWITCH(KEY_REPLACE, flags, replace),
  PROGRAM_FLAG_TEXT(KEY_OUTPUT, flags, output),
  PROGRAM_FLAG_SWITCH(KEY_SINGLE, flags, request.single_token),
  PROGRAM_FLAG_SWITCH(KEY_INSECURE, flags, insecure_bind),
  PROGRAM_FLAG_SWITCH(KEY_JSON, flags, json),
  PROGRAM_FLAG_SWITCH(KEY_COMPARE, flags, compare),
  PROGRAM_FLAG_TEXT(KEY_METHODS, flags, methods),
  PROGRAM_FLAG_TEXT(KEY_TREES, flags, trees),
  PROGRAM_FLAG_TEXT(KEY_TEMPS, flags, temperatures),
  PROGRAM_FLAG_INT(KEY_REPEAT, flags, repeat, "--repeat", 1, FLAGS_REPEAT_MAX),
  PROGRAM_FLAG_INT(KEY_TOP_K, flags, request.sampling.top_k, "--top-k", 0, SAMPLER_VOCAB_MAX),
  PROGRAM_FLAG_INT(KEY_MAX_TOKENS, flags, request.max_tokens, "--max-tokens", 1, WIRE_CONTEXT_MAX),
  PROGRAM_FLAG_INT(KEY_THREADS, flags, workers.threads, "--threads", 1, WORKER_SETTINGS_THREADS_MAX),
  PROGRAM_FLAG_INT(KEY_CONTEXT, flags, request.context, "--ctx", 2, WIRE_CONTEXT_MAX),
  PROGRAM_FLAG_INT(KEY_BUDGET, flags, request.budget, "--budget", 0, WIRE_BUDGET_MAX),
  PROGRAM_FLAG_INT(KEY_SELFCHECK, flags, request.selfcheck, "--selfcheck", 0, INT32_MAX),
  PROGRAM_FLAG_INT(KEY_DRAFT_LAYERS, flags, workers.draft_layers, "--draft-layers", 1, MODEL_LAYERS_MAX),
  PROGRAM_FLAG_INT(KEY_DRAFT_THREADS, flags, workers.draft_threads, "--draft-threads", 1,
                   WORKER_SETTINGS_THREADS_MAX),
  PROGRAM_FLAG_INT(KEY_DRAFT_CONTEXT, flags, workers.draft_context, "--draft-ctx", 2, WIRE_CONTEXT_MAX),
  PROGRAM_FLAG_INT(KEY_PORT, flags, port, "--port", 0, UINT16_MAX),
  PROGRAM_FLAG_TEXT(KEY_API_KEY, flags, api_keys),
  PROGRAM_FLAG_TEXT(KEY_API_KEY_FILE, flags, api_key_file),
  PROGRAM_FLAG_TEXT(KEY_ADMIN_KEY, flags, admin_key),
  PROGRAM_FLAG_TEXT(KEY_URL, flags, url),
  PROGRAM_FLAG_SWITCH(KEY_ONCE, flags, once),
  PROGRAM_FLAG_TEXT(KEY_CORS, flags, cors_origin),
  PROGRAM_FLAG_TEXT(KEY_SSL_CERT, flags, certificate_file),
  PROGRAM_FLAG_TEXT(KEY_SSL_KEY, flags, key_file),
  PROGRAM_FLAG_INT(KEY_MAX_WAITING, flags, waiting_max, "--max-waiting", 0, 1 << 20),
  PROGRAM_FLAG_CHOICE(KEY_WORKERS, flags, workers_from, "--workers", worker_choices),
  PROGRAM_FLAG_INT(KEY_WAIT, flags, wait, "--wait", 0, INT32_MAX),
  PROGRAM_FLAG_INT(KEY_ROWS, flags, rows, "--rows", 1, MODEL_VOCAB_MAX),
  PROGRAM_FLAG_CHOICE(KEY_TYPE, flags, type, "--type", types),
  PROGRAM_FLAG_CHOICE(KEY_HEAD_TYPE, flags, output_type, "--head-type", types),
  PROGRAM_FLAG_INT(KEY_TO, flags, to, "--to", 0, WIRE_CONTEXT_MAX),
  PROGRAM_FLAG_CHOICE(KEY_LEDGER_MODE, flags, ledger_mode, "--ledger-mode", ledger_modes),
  PROGRAM_FLAG_INT(KEY_LIMIT, flags, limit, "--limit", 0, INT32_MAX),
  PROGRAM_FLAG_INT(KEY_SESSIONS, flags, workers.sessions, "--sessions", 1, FLAGS_SESSIONS_MAX),
  PROGRAM_FLAG_INT(KEY_KV_BLOCKS, flags, workers.kv_blocks, "--kv-blocks", 0, FLAGS_KV_BLOCKS_MAX),
  /* sampler_check knows which of these are outside: */
  PROGRAM_FLAG_FLOAT(KEY_TEMP, flags, request.sampling.temperature, "--temp", 0, SAMPLER_TEMPERATURE_MAX),
  PROGRAM_FLAG_FLOAT(KEY_TOP_P, flags, request.sampling.top_p, "--top-p", 0, 1),
  PROGRAM_FLAG_FLOAT(KEY_MIN_P, flags, request.sampling.min_p, "--min-p", 0, 1),
  PROGRAM_FLAG_FLOAT(KEY_PENALTY, flags, request.sampling.repeat_penalty, "--repeat-penalty", 0,
                     SAMPLER_PENALTY_MAX),
  PROGRAM_FLAG_FLOAT(KEY_PRESENCE, flags, request.sampling.presence_penalty, "--presence-penalty",
                     -SAMPLER_COUNTED_MAX, SAMPLER_COUNTED_MAX),
  PROGRAM_FLAG_FLOAT(KEY_FREQUENCY, flags, request.sampling.frequency_penalty, "--frequency-penalty",
                     -SAMPLER_COUNTED_MAX, SAMPLER_COUNTED_MAX),
};
/* clang-format on */
const size_t flags_table_value_count = sizeof flags_table_values / sizeof *flags_table_values;
