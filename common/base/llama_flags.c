#include "common/base/llama_flags.h"

#include <string.h>

#define DEVICES    "--device NAME says what computes: `tandem --list-devices' tells the names"
#define ESCAPES    "leave it out: write the characters themselves, as in $'one\\ntwo' of a shell"
#define BATCHES    "--sessions N of `tandem batch', `tandem serve-workers' and the workers"
#define LISTEN     "--host and --port of `tandem serve'"
#define LOCAL_FILE "give a file of this machine: -m FILE"
#define PROMPT     "give the prompt to `tandem run' as an argument in quotes"

static const llama_flag flags[] = {
    {"-n", "--max-tokens", NULL},
    {"--predict", "--max-tokens", NULL},
    {"--n-predict", "--max-tokens", NULL},
    {"-c", "--ctx", NULL},
    {"--ctx-size", "--ctx", NULL},
    {"-t", "--threads", NULL},
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
    {"--spec-type", NULL, "--draft METHOD is ngram, model or none"},
    {"-td", "--draft-threads", NULL},
    {"--threads-draft", "--draft-threads", NULL},
    {"-cd", "--draft-ctx", NULL},
    {"--ctx-size-draft", "--draft-ctx", NULL},

    {"-np", "--sessions", BATCHES},
    {"--parallel", "--sessions", BATCHES},
    {"--host", NULL, LISTEN},
    {"--port", NULL, LISTEN},
    {"-dev", "--device", NULL},
    {"-devd", "--draft-device", NULL},
    {"--device-draft", "--draft-device", NULL},
    {"-mg", NULL, DEVICES},
    {"--main-gpu", NULL, DEVICES},
    {"-e", NULL, ESCAPES},
    {"--escape", NULL, ESCAPES},
    {"--keep", NULL, "leave it out: a conversation asks before it drops anything"},
    {"--mirostat", NULL, "--temp, --top-k, --top-p and --min-p are what there is"},
    {"--lora", NULL, "merge the adapter into the model's file: none is applied here"},
    {"--in-prefix", NULL, "the chat template puts marks around a message; --raw leaves it out"},
    {"--in-suffix", NULL, "the chat template puts marks around a message; --raw leaves it out"},
    {"--no-cnv", NULL, "--raw leaves the chat template out; with a prompt there is one answer"},
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
};

static const llama_idle idles[] = {
    {"-ngl", LLAMA_VALUE, DEVICES},
    {"--gpu-layers", LLAMA_VALUE, DEVICES},
    {"--n-gpu-layers", LLAMA_VALUE, DEVICES},
    {"-ngld", LLAMA_VALUE, DEVICES},
    {"--gpu-layers-draft", LLAMA_VALUE, DEVICES},
    {"--n-gpu-layers-draft", LLAMA_VALUE, DEVICES},
    {"-sm", LLAMA_VALUE, DEVICES},
    {"--split-mode", LLAMA_VALUE, DEVICES},
    {"-ts", LLAMA_VALUE, DEVICES},
    {"--tensor-split", LLAMA_VALUE, DEVICES},
    {"-fa", LLAMA_WORD, NULL},
    {"--flash-attn", LLAMA_WORD, NULL},
    {"-b", LLAMA_VALUE, NULL},
    {"--batch-size", LLAMA_VALUE, NULL},
    {"-ub", LLAMA_VALUE, NULL},
    {"--ubatch-size", LLAMA_VALUE, NULL},
    {"-cb", LLAMA_SWITCH, NULL},
    {"--cont-batching", LLAMA_SWITCH, NULL},
    {"--mlock", LLAMA_SWITCH, NULL},
    {"--mmap", LLAMA_SWITCH, NULL},
    {"--no-mmap", LLAMA_SWITCH, NULL},
    {"--no-warmup", LLAMA_SWITCH, NULL},
    {"-tb", LLAMA_VALUE, NULL},
    {"--threads-batch", LLAMA_VALUE, NULL},
    {"--draft-min", LLAMA_VALUE, NULL},
    {"--draft-n-min", LLAMA_VALUE, NULL},
    {"--draft-p-min", LLAMA_VALUE, NULL},
    {"--draft-p-split", LLAMA_VALUE, NULL},
    {"--spec-draft-n-min", LLAMA_VALUE, NULL},
    {"--spec-draft-p-min", LLAMA_VALUE, NULL},
    {"-st", LLAMA_SWITCH, NULL},
    {"--single-turn", LLAMA_SWITCH, NULL},
    {"--no-display-prompt", LLAMA_SWITCH, NULL},
    {"--simple-io", LLAMA_SWITCH, NULL},
    {"--log-disable", LLAMA_SWITCH, NULL},
    {"-co", LLAMA_WORD, NULL},
    {"--color", LLAMA_WORD, NULL},
    {"--jinja", LLAMA_SWITCH, NULL},
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

const llama_idle *llama_flags_find_idle(const char *word, size_t size) {
  for (size_t i = 0; i < COUNT(idles); i++)
    if (strncmp(idles[i].theirs, word, size) == 0 && !idles[i].theirs[size]) return &idles[i];
  return NULL;
}

bool llama_flags_is_word(const char *word) {
  return strcmp(word, "on") == 0 || strcmp(word, "off") == 0 || strcmp(word, "auto") == 0;
}

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
