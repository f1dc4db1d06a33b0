#include "orchestrator/cli/line_editor.h"

#include "common/base/utf8.h"
#include "orchestrator/cli/line_reader.h"
#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

#define READ_BYTES        4096
#define HISTORY_LINES     1000
#define HISTORY_BYTES_MAX (1 << 20) /* of the file: then only the lines above are kept */
#define INTERRUPT         3         /* Ctrl-C as a character: the terminal never sends it, SIGINT does */
#define WATCHED           3

static const char PASTE_ON[] = "\033[?2004h",
                  PASTE_OFF[] = "\033[?2004l"; /* bracketed paste: xterm's control sequences */
static const wchar_t PASTE_END[] = L"\033[201~";

struct line_editor {
  line_editor_options options; /* history: our copy */
  EditLine *edit;
  HistoryW *history;
  FILE *screen;        /* NULL: nothing is drawn */
  struct termios mode; /* of the terminal, as it was found */
  bool reading;
  const wchar_t *prompt;
  uv_poll_t keyboard;
  uv_signal_t signals[WATCHED]; /* SIGWINCH, SIGTSTP, SIGCONT */
  int open_handles;

  char bytes[READ_BYTES]; /* [taken, size) are still to be looked at */
  size_t taken, size;
  bool ended;       /* no more will come */
  bool interrupt;   /* line_editor_interrupt was called */
  bool interrupted; /* the current line was dropped by it */
  bool was_empty;

  wchar_t *pasted;
  size_t pasted_size, pasted_capacity;
  char *line; /* [line_size] */
  size_t line_size, line_capacity;
};

/* ---- the terminal's modes ---- */

/* The mode between two lines: no echo, and no waiting for a line end. */
static void set_quiet(line_editor *l) {
  struct termios quiet = l->mode;
  quiet.c_lflag &= ~(tcflag_t)(ECHO | ICANON);
  quiet.c_cc[VMIN] = 1;
  quiet.c_cc[VTIME] = 0;
  if (l->screen) tcsetattr(STDIN_FILENO, TCSADRAIN, &quiet);
}

static void draw(line_editor *l, const char *text) {
  if (!l->screen) return;
  fputs(text, l->screen);
  fflush(l->screen);
}

void line_editor_restore(line_editor *l) {
  if (!l || !l->screen) return;
  draw(l, PASTE_OFF);
  tcsetattr(STDIN_FILENO, TCSADRAIN, &l->mode);
}

/* Rows between the prompt and the cursor on a terminal of so many columns, which has wrapped the line anew by
 * itself. */
static int rows_above(const line_editor *l, int columns) {
  const LineInfoW *line = el_wline(l->edit);
  int row = 0, column = (int)wcslen(l->prompt);
  for (const wchar_t *c = line->buffer; c < line->cursor; c++) {
    int width = wcwidth(*c) < 0 ? 2 : wcwidth(*c); /* ^X */
    bool wraps = *c == L'\n' || column + width > columns;
    row += wraps;
    column = *c == L'\n' ? 0 : wraps ? width : column + width;
  }
  return row + (column == columns);
}

/* Draws the current line again where its prompt is. */
static void resize(line_editor *l) {
  struct winsize size;
  if (l->reading && ioctl(fileno(l->screen), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    int rows = rows_above(l, size.ws_col);
    if (rows) fprintf(l->screen, "\033[%dA", rows);
    fputs("\r\033[J", l->screen);
  }
  el_resize(l->edit);
  if (l->reading) el_set(l->edit, EL_REFRESH);
}

/* Continues the line where it was left, in the mode in which it was left. */
static void come_back(line_editor *l) {
  if (!l->screen) return;
  draw(l, PASTE_ON);
  if (!l->reading) {
    set_quiet(l);
    return;
  }
  el_set(l->edit, EL_PREP_TERM, 1);
  el_resize(l->edit);
  el_set(l->edit, EL_REFRESH);
}

static void on_signal(uv_signal_t *handle, int number) {
  line_editor *l = handle->data;
  if (number == SIGWINCH) {
    resize(l);
  } else if (number == SIGTSTP) {
    if (l->reading) el_set(l->edit, EL_PREP_TERM, 0);
    line_editor_restore(l);
    kill(getpid(), SIGSTOP);
  } else {
    come_back(l);
  }
}

/* ---- keys ---- */

static void on_keyboard(uv_poll_t *poll, int status, int events) {
  line_editor *l = poll->data;
  (void)status, (void)events; /* the read will show it */
  uv_poll_stop(poll);
  size_t left = l->size - l->taken;
  memmove(l->bytes, l->bytes + l->taken, left);
  l->taken = 0;
  l->size = left;
  ssize_t n = read(STDIN_FILENO, l->bytes + left, sizeof l->bytes - left);
  if (n > 0)
    l->size += (size_t)n;
  else if (n == 0 || (errno != EAGAIN && errno != EINTR))
    l->ended = true;
}

static bool take_character(line_editor *l, wchar_t *out) {
  size_t left = l->size - l->taken, length;
  uint32_t code = 0xfffd;
  if (left == 0) return false;
  utf8_kind kind = utf8_next((const uint8_t *)l->bytes + l->taken, left, &length, &code);
  if (kind == UTF8_PARTIAL && !l->ended) return false;
  l->taken += length;
  *out = kind == UTF8_CHARACTER ? (wchar_t)code : L'\xfffd';
  return true;
}

/* Gives libedit its next key, and runs the loop until there is one. */
static int next_key(EditLine *edit, wchar_t *out) {
  line_editor *l;
  el_get(edit, EL_CLIENTDATA, &l);
  for (;;) {
    if (l->options.over(l->options.owner)) return 0;
    if (l->interrupt) {
      l->interrupt = false;
      l->interrupted = true;
      *out = INTERRUPT;
      return l->screen ? 1 : 0; /* which is bound to drop_line; without editing the line just ends */
    }
    if (take_character(l, out)) return 1;
    if (l->ended) return 0;
    if (!uv_is_active((uv_handle_t *)&l->keyboard)) uv_poll_start(&l->keyboard, UV_READABLE, on_keyboard);
    uv_run(l->options.loop, UV_RUN_ONCE);
  }
}

static unsigned char drop_line(EditLine *edit, wint_t key) {
  line_editor *l;
  (void)key;
  el_get(edit, EL_CLIENTDATA, &l);
  const LineInfoW *line = el_wline(edit);
  l->was_empty = line->lastchar == line->buffer && l->line_size == 0;
  l->interrupted = true;
  return CC_EOF;
}

static bool add_pasted(line_editor *l, wchar_t c) {
  if (l->pasted_size + 1 >= l->pasted_capacity) {
    size_t wanted = 2 * l->pasted_capacity + 1024;
    wchar_t *p = realloc(l->pasted, wanted * sizeof *p);
    if (!p) return false;
    l->pasted = p;
    l->pasted_capacity = wanted;
  }
  l->pasted[l->pasted_size++] = c;
  l->pasted[l->pasted_size] = 0;
  return true;
}

static bool paste_ended(line_editor *l) {
  size_t end = sizeof PASTE_END / sizeof *PASTE_END - 1;
  if (l->pasted_size < end || wmemcmp(l->pasted + l->pasted_size - end, PASTE_END, end) != 0) return false;
  l->pasted[l->pasted_size -= end] = 0;
  return true;
}

/* Line ends are '\n'; one at the very end is left out, so that the user ends the line. */
static void tidy_paste(line_editor *l) {
  size_t n = 0;
  for (size_t i = 0; i < l->pasted_size; i++) {
    bool is_crlf = l->pasted[i] == L'\r' && l->pasted[i + 1] == L'\n';
    if (!is_crlf && l->pasted[i]) l->pasted[n++] = l->pasted[i] == L'\r' ? L'\n' : l->pasted[i];
  }
  while (n > 0 && l->pasted[n - 1] == L'\n') n--;
  if (l->pasted) l->pasted[n] = 0;
  l->pasted_size = n;
}

/* Everything up to the end of the paste is text, line ends too. */
static unsigned char take_paste(EditLine *edit, wint_t key) {
  line_editor *l;
  wchar_t c;
  (void)key;
  el_get(edit, EL_CLIENTDATA, &l);
  l->pasted_size = 0;
  do
    if (next_key(edit, &c) != 1) return CC_EOF;
  while (!l->interrupted && add_pasted(l, c) && !paste_ended(l));
  if (l->interrupted) return drop_line(edit, c);
  tidy_paste(l);
  if (l->pasted_size && el_winsertstr(edit, l->pasted)) return CC_ERROR;
  return CC_REFRESH;
}

/* ---- lines ---- */

static wchar_t *prompt_of(EditLine *edit) {
  line_editor *l;
  el_get(edit, EL_CLIENTDATA, &l);
  return (wchar_t *)l->prompt;
}

static bool reserve(line_editor *l, size_t more) {
  if (l->line_size + more <= l->line_capacity) return true;
  size_t wanted = 2 * (l->line_size + more) + 1;
  char *p = realloc(l->line, wanted);
  if (!p) return false;
  l->line = p;
  l->line_capacity = wanted;
  return true;
}

static void put_utf8(line_editor *l, uint32_t c) {
  char *at = l->line + l->line_size;
  int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  static const uint8_t first[] = {0, 0xc0, 0xe0, 0xf0};
  at[0] = (char)(first[more] | c >> 6 * more);
  for (int i = 1; i <= more; i++) at[i] = (char)(0x80 | (c >> 6 * (more - i) & 0x3f));
  l->line_size += (size_t)more + 1;
}

/* Adds what was typed to the line; *more: the line goes on. */
static bool add_line(line_editor *l, const wchar_t *text, int count, bool *more) {
  if (count > 0 && text[count - 1] == L'\n') count--;
  *more = count > 0 && text[count - 1] == L'\\';
  if (*more) count--;
  if (!reserve(l, (size_t)count * UTF8_SEQUENCE_MAX + 2)) return false;
  for (int i = 0; i < count; i++) put_utf8(l, (uint32_t)text[i]);
  if (*more) l->line[l->line_size++] = '\n';
  l->line[l->line_size] = 0;
  return true;
}

static void remember(line_editor *l);

static line_kind read_whole(line_editor *l) {
  bool more = true;
  l->line_size = 0;
  while (more) {
    int count = 0;
    if (!l->screen) printf("%ls", l->prompt), fflush(stdout); /* libedit prompts only where it draws */
    const wchar_t *text = el_wgets(l->edit, &count);
    if (l->interrupted) return LINE_INTERRUPTED;
    if (!text || count <= 0) return LINE_END;
    if (!add_line(l, text, count, &more)) return LINE_END;
    l->prompt = L"\x2026 ";
  }
  return LINE_TEXT;
}

line_kind line_editor_read(line_editor *l, const char *prompt, bool keep, const char **text, size_t *size) {
  wchar_t wide[64] = L"";
  mbstowcs(wide, prompt, sizeof wide / sizeof *wide - 1);
  l->prompt = wide;
  l->interrupted = false;
  l->was_empty = true;
  l->reading = true;
  line_kind kind = read_whole(l);
  l->reading = false;
  l->prompt = L"";
  uv_poll_stop(&l->keyboard);
  set_quiet(l);
  *text = l->line;
  *size = l->line_size;
  if (kind == LINE_TEXT && keep && l->line_size) remember(l);
  if (kind != LINE_TEXT) draw(l, kind == LINE_INTERRUPTED ? "^C\n" : "\n");
  if (kind != LINE_TEXT) line_editor_end_prompt(l);
  return kind;
}

void line_editor_end_prompt(const line_editor *l) {
  if (!l->screen) puts(""), fflush(stdout);
}

bool line_editor_was_empty(const line_editor *l) {
  return l->was_empty;
}

void line_editor_interrupt(line_editor *l) {
  l->interrupt = l->reading;
}

/* ---- history ---- */

static FILE *history_file(const line_editor *l, int flags) {
  int fd = l->options.history ? open(l->options.history, flags | O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
  FILE *file = fd >= 0 ? fdopen(fd, "a") : NULL;
  if (fd >= 0 && !file) close(fd);
  if (file) fseek(file, 0, SEEK_END); /* an empty file gets libedit's first line */
  return file;
}

/* One more line at the end of the file, which other conversations may be writing too: a history of one line
 * is saved there (H_NSAVE_FP for 1 saves two). */
static void append_history(const line_editor *l, const wchar_t *line) {
  HistEventW event;
  HistoryW *one = history_winit();
  FILE *file = one ? history_file(l, O_APPEND) : NULL;
  if (file) {
    history_w(one, &event, H_SETSIZE, 1);
    history_w(one, &event, H_ENTER, line);
    history_w(one, &event, H_SAVE_FP, file);
    fclose(file);
  }
  if (one) history_wend(one);
}

static void remember(line_editor *l) {
  HistEventW event;
  wchar_t *wide = malloc((l->line_size + 1) * sizeof *wide);
  if (wide && mbstowcs(wide, l->line, l->line_size + 1) != (size_t)-1) {
    history_w(l->history, &event, H_ENTER, wide);
    append_history(l, wide);
  }
  free(wide);
}

static void load_history(line_editor *l) {
  HistEventW event;
  struct stat s;
  history_w(l->history, &event, H_SETSIZE, HISTORY_LINES);
  history_w(l->history, &event, H_SETUNIQUE, 1);
  if (!l->options.history || stat(l->options.history, &s) != 0) return;
  chmod(l->options.history, 0600);
  history_w(l->history, &event, H_LOAD, l->options.history);
  if (s.st_size <= HISTORY_BYTES_MAX) return;
  FILE *file = history_file(l, O_TRUNC);
  if (!file) return;
  history_w(l->history, &event, H_SAVE_FP, file);
  fclose(file);
}

/* ---- life ---- */

static FILE *screen_of(void) {
  return !isatty(STDIN_FILENO)   ? NULL
         : isatty(STDOUT_FILENO) ? stdout
         : isatty(STDERR_FILENO) ? stderr
                                 : NULL;
}

static int open_edit(line_editor *l, err *e) {
  FILE *to = l->screen ? l->screen : stdout;
  setlocale(LC_CTYPE, "");
  if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) setlocale(LC_CTYPE, "C.UTF-8"); /* what models speak */
  l->edit = el_init_fd("tandem", stdin, to, to, STDIN_FILENO, fileno(to), fileno(to));
  l->history = history_winit();
  if (!l->edit || !l->history) return err_set(e, ERR_NOMEM, "out of memory for the line editor");
  el_set(l->edit, EL_CLIENTDATA, l);
  el_set(l->edit, EL_SIGNAL, 0);
  el_set(l->edit, EL_EDITOR, "emacs");
  el_wset(l->edit, EL_PROMPT, prompt_of);
  el_wset(l->edit, EL_GETCFN, next_key);
  el_wset(l->edit, EL_HIST, history_w, l->history);
  el_wset(l->edit, EL_ADDFN, L"drop-line", L"drops the line", drop_line);
  el_wset(l->edit, EL_ADDFN, L"take-paste", L"takes a paste", take_paste);
  el_source(l->edit, NULL); /* ~/.editrc */
  el_wset(l->edit, EL_BIND, L"^C", L"drop-line", NULL);
  el_wset(l->edit, EL_BIND, L"\\e[200~", L"take-paste", NULL);
  el_wset(l->edit, EL_BIND, L"^R", L"em-inc-search-prev", NULL);
  if (l->screen)
    el_set(l->edit, EL_SETTY, "-x", "-echo", "-icanon",
           NULL); /* the mode that libedit leaves: no moment that echoes */
  else
    el_set(l->edit, EL_EDITMODE, 0);
  load_history(l);
  return ERR_OK;
}

static int watch(line_editor *l, err *e) {
  static const int numbers[WATCHED] = {SIGWINCH, SIGTSTP, SIGCONT};
  if (line_reader_watch(l->options.loop, &l->keyboard, STDIN_FILENO) != 0)
    return err_set(e, ERR_IO, "cannot wait for the terminal");
  l->keyboard.data = l;
  l->open_handles = 1;
  for (int i = 0; i < WATCHED && l->screen; i++) {
    uv_signal_init(l->options.loop, &l->signals[i]);
    l->signals[i].data = l;
    l->open_handles++;
    uv_signal_start(&l->signals[i], on_signal, numbers[i]);
  }
  return ERR_OK;
}

int line_editor_open(line_editor **out, const line_editor_options *o, err *e) {
  line_editor *l = *out = calloc(1, sizeof *l);
  if (!l) return err_set(e, ERR_NOMEM, "out of memory for the line editor");
  l->options = *o;
  l->options.history = o->history ? strdup(o->history) : NULL;
  l->prompt = L"";
  l->screen = screen_of();
  if (l->screen && tcgetattr(STDIN_FILENO, &l->mode) != 0) l->screen = NULL;
  int rc = watch(l, e);
  if (rc == ERR_OK) rc = open_edit(l, e);
  if (rc) return rc;
  draw(l, PASTE_ON);
  set_quiet(l);
  return ERR_OK;
}

static void on_closed(uv_handle_t *handle) {
  line_editor *l = handle->data;
  if (--l->open_handles == 0) free(l);
}

void line_editor_close(line_editor *l) {
  if (!l) return;
  if (l->edit) {
    el_end(l->edit);
    line_editor_restore(l);
  }
  if (l->history) history_wend(l->history);
  free((char *)l->options.history);
  free(l->pasted);
  free(l->line);
  if (l->open_handles == 0) {
    free(l);
    return;
  }
  for (int i = l->open_handles - 2; i >= 0; i--) uv_close((uv_handle_t *)&l->signals[i], on_closed);
  uv_close((uv_handle_t *)&l->keyboard, on_closed);
}
