/* tandem: finds the command that the user has typed. */
#include "common/base/log.h"
#include "common/base/program.h"
#include "common/command_line/flag_variables.h"
#include "common/command_line/habits.h"
#include "common/command_line/nearest_word.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/service/child_processes.h"
#include "version.h"
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define TEXT_MAX 4096 /* bytes of what a worker says of itself */

typedef struct command {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *text;
} command;

static const command commands[] = {
    {"run", command_run, "answer one prompt"},
    {"batch", command_batch, "answer a file of prompts, several at a time"},
    {"serve", command_serve, "the OpenAI API over HTTP"},
    {"serve-workers", command_serve_workers, "answer request lines with workers that others start"},
    {"session", command_session,
     "list, show, resume, rollback, export, release or end what the ledger keeps"},
    {"status", command_status, "what runs now on this machine"},
    {"workers", command_operate, "list, drain or resume the workers of a running serve"},
    {"top", command_operate, "what a running serve does, each second anew"},
    {"tokenize", command_tokenize, "text to token ids"},
    {"detokenize", command_detokenize, "token ids to text"},
    {"convert-head", command_convert_head, "a draft head to a GGUF, for tandem and llama.cpp"},
    {"keygen", command_keygen, "make the keys by which programs know each other over tcp"},
    {"config", command_config, "what the flags of a command are, and where they have come from"},
    {"doctor", command_doctor, "look at what tandem needs on this machine"},
    {"bench", command_bench, "measure what speculation is worth here (spec), or a step's parts (step)"},
};
enum { LISTED_COMMANDS = sizeof commands / sizeof *commands };

static void print_help(FILE *to) {
  fputs("Usage: tandem COMMAND [FLAGS...]\n"
        "Lossless speculative decoding: a draft guesses, a target verifies, the answer is the target's.\n\n"
        "Commands:\n",
        to);
  for (int i = 0; i < LISTED_COMMANDS; i++) fprintf(to, "  %-15s%s\n", commands[i].name, commands[i].text);
  fputs("\n`tandem COMMAND --help' tells the flags of a command. Also:\n"
        "  --help      this text\n"
        "  --version   version and commit of this program and of the workers, and the numerics id\n"
        "  --list-devices   what can compute on this machine, for --device and --draft-device\n\n"
        "A flag may stand in the environment: --max-tokens N is TANDEM_MAX_TOKENS=N, --raw is TANDEM_RAW=1; "
        "the command\n"
        "line wins. Flags of llama.cpp that mean the same are taken too: -n, -c, -t, -s, -p, -sys, "
        "--temperature, ...\n\n"
        "Exit statuses:\n",
        to);
#define LINE(name, number, text) fprintf(to, "  %-5d%s\n", number, text);
#define NO_LINE(name, number, text)
  STATUS_LIST(LINE, LINE, NO_LINE)
#undef LINE
#undef NO_LINE
}

static int print_usage(const char *why, const char *what) {
  const logger log = {"tandem", LOG_INFO};
  log_line(&log, LOG_INFO, "%s%s", why, what);
  fputs("Try `tandem --help' for the commands and flags.\n", stderr);
  return STATUS_USAGE;
}

/* A flag, where llama.cpp has no command before it; another program's name for a command; or a word that is
 * misspelt. */
static int no_such(const char *name) {
  const char *words[LISTED_COMMANDS + 3] = {"--help", "--version", "--list-devices"};
  for (int i = 0; i < LISTED_COMMANDS; i++) words[3 + i] = commands[i].name;
  const char *near = nearest_word(name, words, LISTED_COMMANDS + 3);
  char what[300];
  const habit *h = habits_find_command(name);
  if (h) {
    snprintf(what, sizeof what, "%s: did you mean %s?%s%s%s", name, h->ours, h->instead ? " (" : "",
             h->instead ? h->instead : "", h->instead ? ")" : "");
    return print_usage("no such command: ", what);
  }
  if (name[0] == '-' && !near) {
    snprintf(what, sizeof what, "`tandem run %.200s ...', for example", name);
    return print_usage("a command comes first: ", what);
  }
  snprintf(what, sizeof what, "%.200s%s%s%s", name, near ? ": did you mean " : "", near ? near : "",
           near ? "?" : "");
  return print_usage("no such command or flag: ", what);
}

static bool print_what_it_says(const char *name, const char *flag) {
  char text[TEXT_MAX];
  err e = {0};
  if (child_processes_ask(name, flag, CHILD_PROCESSES_ASK_MS, text, sizeof text, &e))
    return command_error(STATUS_WORKER, "%s", e.text) == 0;
  fputs(text, stdout);
  return true;
}

/* The target prints the numerics id, because it computes. */
static int print_version(void) {
  printf("tandem %s (%s)\n", TANDEM_VERSION, TANDEM_COMMIT);
  fflush(stdout);
  bool ok = print_what_it_says("tandem-target", "--version");
  ok = print_what_it_says("tandem-draft", "--version") && ok;
  if (fflush(stdout) != 0) return STATUS_IO;
  return ok ? STATUS_OK : STATUS_WORKER;
}

/* The target prints its devices, which are the draft's too. */
static int print_devices(void) {
  bool ok = print_what_it_says("tandem-target", "--list-devices");
  if (fflush(stdout) != 0) return STATUS_IO;
  return ok ? STATUS_OK : STATUS_WORKER;
}

int main(int argc, char **argv) {
  program_begin("tandem");
  flag_variables_check("tandem");
  if (argc < 2) return print_usage("no command given", "");
  const char *name = argv[1];
  if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
    print_help(stdout);
    return fflush(stdout) == 0 ? STATUS_OK : STATUS_IO;
  }
  if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) return print_version();
  if (strcmp(name, "--list-devices") == 0) return print_devices();
  for (int i = 0; i < LISTED_COMMANDS; i++) {
    if (strcmp(name, commands[i].name) != 0) continue;
    char whole[64];
    snprintf(whole, sizeof whole, "tandem %s", name);
    argv[1] = whole;
    return commands[i].run(argc - 1, argv + 1);
  }
  return no_such(name);
}
