#include "common/command_line/habits.h"

#include <string.h>

#define DEVICES "--device NAME says what computes: `tandem --list-devices' tells the names"

static const habit flags[] = {
    {"-n --predict --n-predict", "--max-tokens", NULL},
    {"-c --ctx-size", "--ctx", NULL},
    {"-t", "--threads", NULL},
    {"-s", "--seed", NULL},
    {"-sys --system-prompt", "--system", NULL},
    {"--temperature", "--temp", NULL},
    {"-r --reverse-prompt", "--stop", NULL},
    {"-p --prompt", NULL, "give the prompt to `tandem run' as an argument in quotes"},
    {"-f --file", NULL, "`tandem run -m MODEL - < FILE' reads the prompt from a file"},
    {"--repeat-last-n", NULL, "leave it out: --repeat-penalty looks at all of the text"},
    {"--ignore-eos", NULL, "leave it out: an answer ends where the model ends it"},
    {"-md --spec-draft-model", "--model-draft", NULL},
    {"--draft-max --draft-n --spec-draft-n-max", "--budget", NULL},
    {"--spec-type", NULL, "--draft METHOD is ngram, model or none"},
    {"-td --threads-draft", "--draft-threads", NULL},
    {"-cd --ctx-size-draft", "--draft-ctx", NULL},
    {"-np --parallel", "--sessions",
     "--sessions N of `tandem batch', `tandem serve-workers' and the workers"},
    {"--host --port", NULL, "--host and --port of `tandem serve'"},
    {"-dev", "--device", NULL},
    {"-devd --device-draft", "--draft-device", NULL},
    {"-mg --main-gpu", NULL, DEVICES},
    {"-e --escape", NULL, "leave it out: write the characters themselves, as in $'one\\ntwo' of a shell"},
    {"--keep", NULL, "leave it out: a conversation asks before it drops anything"},
    {"--mirostat", NULL, "--temp, --top-k, --top-p and --min-p are what there is"},
    {"--lora", NULL, "merge the adapter into the model's file: none is applied here"},
    {"--in-prefix --in-suffix", NULL, "the chat template puts marks around a message; --raw leaves it out"},
    {"--no-cnv -no-cnv --no-conversation", NULL,
     "--raw leaves the chat template out; with a prompt there is one answer"},
    {"--chat-template-file", NULL, "--chat-template NAME is one of those that are built in"},
    {"-ctk --cache-type-k -ctv --cache-type-v", NULL, "the cache's type follows --math"},
    {"-hf --hf-repo -mu --model-url", NULL, "give a file of this machine: -m FILE"},
    {"-i --interactive -cnv --conversation", NULL,
     "leave it and the prompt out: `tandem run' on a terminal is a conversation"},
};

static const habit_idle idles[] = {
    {"-ngl --gpu-layers --n-gpu-layers -ngld --gpu-layers-draft --n-gpu-layers-draft -sm --split-mode -ts "
     "--tensor-split",
     HABIT_VALUE, DEVICES},
    {"-fa --flash-attn -co --color", HABIT_WORD, NULL},
    {"-b --batch-size -ub --ubatch-size -tb --threads-batch --draft-min --draft-n-min --draft-p-min "
     "--draft-p-split --spec-draft-n-min --spec-draft-p-min",
     HABIT_VALUE, NULL},
    {"-cb --cont-batching --mlock --mmap --no-mmap --warmup -st --single-turn --no-display-prompt "
     "--simple-io --log-disable --jinja",
     HABIT_SWITCH, NULL},
};

static const habit commands[] = {
    {"chat", "run", "`tandem run -m MODEL' on a terminal is a conversation"},
    {"cli generate ask infer main", "run", NULL},
    {"complete completion", "run", "`tandem run --raw' continues a text"},
    {"server", "serve", NULL},
    {"ps", "status", NULL},
    {"version", "--version", NULL},
    {"sessions list", "session list", NULL},
    {"resume", "session resume", NULL},
};

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* Is it one of these names, which have blanks between them? */
static bool has_name(const char *names, const char *word, size_t size) {
  for (const char *at = names; size && *at; at += strspn(at, " ")) {
    size_t one = strcspn(at, " ");
    if (one == size && memcmp(at, word, size) == 0) return true;
    at += one;
  }
  return false;
}

static const habit *find(const habit *list, size_t count, const char *word, size_t size) {
  for (size_t i = 0; i < count; i++)
    if (has_name(list[i].theirs, word, size)) return &list[i];
  return NULL;
}

const habit_idle *habits_find_idle(const char *word, size_t size) {
  for (size_t i = 0; i < COUNT(idles); i++)
    if (has_name(idles[i].theirs, word, size)) return &idles[i];
  return NULL;
}

bool habits_is_word(const char *word) {
  return strcmp(word, "on") == 0 || strcmp(word, "off") == 0 || strcmp(word, "auto") == 0;
}

const habit *habits_find(const char *word, size_t size) {
  return find(flags, COUNT(flags), word, size);
}

const habit *habits_find_command(const char *word) {
  return find(commands, COUNT(commands), word, strlen(word));
}

const habit *habits_all(int *count) {
  *count = COUNT(flags);
  return flags;
}
