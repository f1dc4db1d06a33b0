#include "common/base/llama_flags.h"

#include <string.h>

#define DEVICES      "--device NAME says what computes: `tandem --list-devices' tells the names"
#define NOT_NEEDED   "leave it out: nothing has to be chosen here"
#define ANSWER_ALONE "leave it out: stdout gets the answer alone"
#define HOW_MANY     "leave it out: how many are verified is measured, and --budget N is the most"
#define BATCHES      "--sessions N of `tandem batch', `tandem serve-workers' and the workers"
#define LISTEN       "--host and --port of `tandem serve'"
#define LOCAL_FILE   "give a file of this machine: -m FILE"
#define PROMPT       "give the prompt to `tandem run' as an argument in quotes"

static const llama_flag flags[] = {
    {"-n", "--max-tokens", NULL},
    {"--predict", "--max-tokens", NULL},
    {"--n-predict", "--max-tokens", NULL},
    {"-c", "--ctx", NULL},
    {"--ctx-size", "--ctx", NULL},
    {"-t", "--threads", NULL},
    {"-tb", NULL, "--threads N is for prompts too"},
    {"--threads-batch", NULL, "--threads N is for prompts too"},
    {"-s", "--seed", NULL},
    {"-sys", "--system", NULL},
    {"--system-prompt", "--system", NULL},
    {"--temperature", "--temp", NULL},
    {"-r", "--stop", NULL},
    {"--reverse-prompt", "--stop", NULL},
    {"-p", NULL, PROMPT},
    {"--prompt", NULL, PROMPT},
    {"-f", NULL, "`tandem run -m MODEL - < FILE' reads the prompt from a file"},
    {"--file", NULL, "`tandem run -m MODEL - < FILE' reads the prompt from a file"},
    {"--repeat-last-n", NULL, "leave it out: --repeat-penalty looks at all of the text"},
    {"--ignore-eos", NULL, "leave it out: an answer ends where the model ends it"},

    {"-md", "--model-draft", NULL},
    {"--spec-draft-model", "--model-draft", NULL},
    {"--draft-max", "--budget", NULL},
    {"--draft-n", "--budget", NULL},
    {"--spec-draft-n-max", "--budget", NULL},
    {"--draft-min", NULL, HOW_MANY},
    {"--draft-n-min", NULL, HOW_MANY},
    {"--draft-p-min", NULL, HOW_MANY},
    {"--draft-p-split", NULL, HOW_MANY},
    {"--spec-draft-n-min", NULL, HOW_MANY},
    {"--spec-draft-p-min", NULL, HOW_MANY},
    {"--spec-type", NULL, "--draft METHOD is ngram, model or none"},
    {"-td", "--draft-threads", NULL},
    {"--threads-draft", "--draft-threads", NULL},
    {"-cd", "--draft-ctx", NULL},
    {"--ctx-size-draft", "--draft-ctx", NULL},

    {"-np", "--sessions", BATCHES},
    {"--parallel", "--sessions", BATCHES},
    {"--host", NULL, LISTEN},
    {"--port", NULL, LISTEN},
    {"-ngl", NULL, DEVICES},
    {"--gpu-layers", NULL, DEVICES},
    {"--n-gpu-layers", NULL, DEVICES},
    {"-ngld", NULL, DEVICES},
    {"--gpu-layers-draft", NULL, DEVICES},
    {"--n-gpu-layers-draft", NULL, DEVICES},
    {"-dev", "--device", NULL},
    {"-devd", "--draft-device", NULL},
    {"--device-draft", "--draft-device", NULL},
    {"-sm", NULL, DEVICES},
    {"--split-mode", NULL, DEVICES},
    {"-ts", NULL, DEVICES},
    {"--tensor-split", NULL, DEVICES},
    {"-mg", NULL, DEVICES},
    {"--main-gpu", NULL, DEVICES},
    {"-fa", NULL, NOT_NEEDED},
    {"--flash-attn", NULL, NOT_NEEDED},
    {"-b", NULL, NOT_NEEDED},
    {"--batch-size", NULL, NOT_NEEDED},
    {"-ub", NULL, NOT_NEEDED},
    {"--ubatch-size", NULL, NOT_NEEDED},
    {"-cb", NULL, NOT_NEEDED},
    {"--cont-batching", NULL, NOT_NEEDED},
    {"--mlock", NULL, NOT_NEEDED},
    {"--mmap", NULL, NOT_NEEDED},
    {"--no-mmap", NULL, NOT_NEEDED},
    {"--no-warmup", NULL, NOT_NEEDED},
    {"-e", NULL, NOT_NEEDED},
    {"--escape", NULL, NOT_NEEDED},
    {"--jinja", NULL, "leave it out: the file's own template is used, or --chat-template NAME"},
    {"--chat-template-file", NULL, "--chat-template NAME is one of those that are built in"},
    {"-ctk", NULL, "the cache's type follows --math"},
    {"--cache-type-k", NULL, "the cache's type follows --math"},
    {"-ctv", NULL, "the cache's type follows --math"},
    {"--cache-type-v", NULL, "the cache's type follows --math"},
    {"-hf", NULL, LOCAL_FILE},
    {"--hf-repo", NULL, LOCAL_FILE},
    {"-mu", NULL, LOCAL_FILE},
    {"--model-url", NULL, LOCAL_FILE},
    {"-i", NULL, "leave it and the prompt out: `tandem run' on a terminal is a conversation"},
    {"--interactive", NULL, "leave it and the prompt out: `tandem run' on a terminal is a conversation"},
    {"-cnv", NULL, "leave it and the prompt out: `tandem run' on a terminal is a conversation"},
    {"--conversation", NULL, "leave it and the prompt out: `tandem run' on a terminal is a conversation"},
    {"-no-cnv", NULL, "--raw leaves the chat template out; with a prompt there is one answer"},
    {"--no-conversation", NULL, "--raw leaves the chat template out; with a prompt there is one answer"},
    {"-st", NULL, "leave it out: with a prompt there is one answer"},
    {"--single-turn", NULL, "leave it out: with a prompt there is one answer"},
    {"--no-display-prompt", NULL, ANSWER_ALONE},
    {"--simple-io", NULL, ANSWER_ALONE},
    {"--log-disable", NULL, ANSWER_ALONE},
    {"-co", NULL, ANSWER_ALONE},
    {"--color", NULL, ANSWER_ALONE},
};

static const llama_flag commands[] = {
    {"chat", "run", "`tandem run -m MODEL' on a terminal is a conversation"},
    {"cli", "run", NULL},
    {"complete", "run", "`tandem run --raw' continues a text"},
    {"completion", "run", "`tandem run --raw' continues a text"},
    {"generate", "run", NULL},
    {"ask", "run", NULL},
    {"infer", "run", NULL},
    {"main", "run", NULL},
    {"server", "serve", NULL},
    {"ps", "status", NULL},
    {"version", "--version", NULL},
    {"sessions", "session list", NULL},
    {"list", "session list", NULL},
    {"resume", "session resume", NULL},
};

static const llama_flag *find(const llama_flag *list, size_t count, const char *word, size_t size) {
  for (size_t i = 0; i < count; i++)
    if (strncmp(list[i].theirs, word, size) == 0 && !list[i].theirs[size]) return &list[i];
  return NULL;
}

#define COUNT(list) (sizeof(list) / sizeof *(list))

const llama_flag *llama_flags_find(const char *word, size_t size) {
  return find(flags, COUNT(flags), word, size);
}
const llama_flag *llama_flags_find_command(const char *word) {
  return find(commands, COUNT(commands), word, strlen(word));
}

const llama_flag *llama_flags_all(int *count) {
  *count = COUNT(flags);
  return flags;
}
