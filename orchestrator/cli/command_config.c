/* tandem config: what the flags of a command are, and where each has come from. */
#include "common/base/utf8.h"
#include "common/command_line/flag_reader.h"
#include "orchestrator/cli/commands.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 64   /* bytes of a number or a word */
#define MANY_MAX 1024 /* more than a request takes */

static const char usage[] =
    "Usage: tandem config [--show] [COMMAND] [FLAGS...]\n"
    "What the flags of a command are (of `tandem run' where none is named; of a worker: tandem-target,\n"
    "tandem-draft), and where each has come from: a file of --config, a variable TANDEM_..., the command\n"
    "line, or nowhere. It is itself such a file.\n";

static const char *const sources[] = {"default", "file", "variable", "command line"};

/* Flags that may be given several times: all texts, with the flag of each. */
typedef struct many {
  flag_id ids[MANY_MAX];
  const char *texts[MANY_MAX];
  int count;
} many;

static int keep(void *context, flag_id id, const char *text, err *e) {
  many *m = context;
  if (flag_of(id)->type != FLAG_MANY) return ERR_OK;
  if (m->count == MANY_MAX)
    return err_set(e, ERR_LIMIT, "--%s is given too often to be shown", flag_of(id)->name);
  m->ids[m->count] = id;
  m->texts[m->count++] = text;
  return ERR_OK;
}

/* In quotes, as YAML: what it folds or refuses is escaped. For bytes that are no
 * UTF-8, of which YAML can say nothing, stands U+FFFD. */
static void print_text(const char *text) {
  const uint8_t *p = (const uint8_t *)text;
  size_t left = strlen(text), length;
  uint32_t code;
  putchar('"');
  for (; left > 0; p += length, left -= length) {
    bool good = utf8_next(p, left, &length, &code) == UTF8_CHARACTER;
    bool plain = code < 0x7f
                     ? code >= 0x20 && code != '"' && code != '\\'
                     : code >= 0xa0 && code != 0x2028 && code != 0x2029 && code != 0xfeff && code < 0xfff0;
    if (good && (plain || code > 0xffff))
      fwrite(p, 1, length, stdout);
    else
      printf("\\u%04X", good ? code : 0xfffd);
  }
  printf("\" ");
}

/* A flag that may stand without a value is true then. */
static void print_own(const char *text, bool given) {
  if (text)
    print_text(text);
  else if (given)
    printf("true ");
}

static void print_many(const flag_row *row, const many *m) {
  bool first = true;
  printf("[");
  for (int i = 0; i < m->count; i++) {
    if (m->ids[i] != row->id) continue;
    if (!first) printf(", ");
    print_text(m->texts[i]);
    first = false;
  }
  printf("] ");
}

/* A default stands in a comment, without a value where it depends on more. */
static void print_row(const flag_row *row, const flag_values *v, const many *m) {
  char text[TEXT_MAX];
  bool given = v->from[row->id] != FLAG_FROM_DEFAULT, plain = given || row->type != FLAG_SIZE; /* 0 */
  printf("%s%s: ", given ? "" : "# ", row->name);
  if (given && row->type == FLAG_MANY)
    print_many(row, m);
  else if (row->type == FLAG_TEXT || row->type == FLAG_OWN)
    print_own(*(const char *const *)((const char *)v + row->offset), given);
  else if (plain && flag_print(row, v, text, sizeof text))
    printf("%s ", text);
  printf("# %s\n", sources[v->from[row->id]]);
}

/* The command whose flags are shown: of one word or of two; `tandem run' where none is named. NULL: there is
 * none of this name. */
static const flag_command_row *find(int argc, char **argv, int *words) {
  if (argc < 2 || argv[1][0] == '-') return *words = 0, &flag_command_rows[COMMAND_RUN];
  for (const flag_command_row *c = flag_command_rows; c <= &flag_command_rows[COMMAND_DRAFT]; c++) {
    size_t first = strlen(argv[1]);
    if (strcmp(c->name, argv[1]) == 0) return *words = 1, c;
    if (argc > 2 && strncmp(c->name, argv[1], first) == 0 && c->name[first] == ' ' &&
        strcmp(c->name + first + 1, argv[2]) == 0)
      return *words = 2, c;
  }
  return NULL;
}

int command_config(int argc, char **argv) {
  int words = 0;
  bool help = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
  if (argc > 1 && strcmp(argv[1], "--show") == 0) argc--, argv[1] = argv[0], argv++; /* all that there is */
  const flag_command_row *shape = help ? NULL : find(argc, argv, &words);
  if (!shape) {
    if (!help) fprintf(stderr, "tandem config: there is no command %s\n", argv[1]);
    fputs(usage, help ? stdout : stderr);
    return help ? STATUS_OK : STATUS_USAGE;
  }
  flags f;
  static many m;
  flags_default(&f, (flag_command)(shape - flag_command_rows));
  const flag_program reader = {.command = f.command, .values = &f.given, .context = &m, .own = keep};
  argv[words] = argv[0];
  flag_read_all(&reader, argc - words, argv + words);
  for (int i = 0; i < flag_row_count; i++)
    if (flag_rows[i].commands >> f.command & 1 && flag_rows[i].help && flag_rows[i].id != FLAG_config)
      print_row(&flag_rows[i], &f.given, &m);
  flags_fini(&f);
  return fflush(stdout) == 0 ? STATUS_OK : STATUS_IO;
}
