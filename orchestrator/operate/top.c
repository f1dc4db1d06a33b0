/* tandem top: what a running server does, refreshed each second. */
#include "common/base/clock.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/operate/operate.h"
#include "orchestrator/operate/server_link.h"
#include "orchestrator/operate/top_screen.h"
#include <ncurses.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PERIOD_MS 1000
#define CONTROL_C 3 /* as a terminal in raw mode gives it */

/* One more sample. */
static int look(top_screen *s, server_link *l, err *e) {
  char *metrics = NULL;
  json_t *slots = NULL, *workers = NULL;
  int rc = server_link_ask(l, "/metrics", NULL, &metrics, e);
  if (rc == ERR_OK) rc = server_link_ask_json(l, "/slots", NULL, &slots, e);
  if (rc == ERR_OK) rc = server_link_ask_json(l, "/v1/workers", NULL, &workers, e);
  if (rc == ERR_OK) {
    top_sample sample;
    top_sample_read(&sample, metrics, slots, clock_us());
    top_screen_add(s, &sample, json_incref(slots), json_incref(json_object_get(workers, "data")));
  }
  free(metrics);
  json_decref(slots);
  json_decref(workers);
  return rc;
}

static int report(const err *e) {
  return command_error(e->code == ERR_NOMEM ? STATUS_FAILED : STATUS_IO, "%s", e->text);
}

static int show_once(top_screen *s, server_link *l) {
  err e = {0};
  usleep(PERIOD_MS * 1000);
  if (look(s, l, &e)) return report(&e);
  top_screen_print(stdout, s);
  return fflush(stdout) == 0 ? STATUS_OK : command_error(STATUS_IO, "cannot write to stdout");
}

/* ---- on a terminal ---- */

/* Headings are in capitals, and the first line is one too. */
static bool is_heading(const char *line, int row) {
  return row == 0 || strncmp(line, "WORKER ", 7) == 0 || strncmp(line, "ANSWER ", 7) == 0;
}

static void draw(const char *text, const err *e) {
  int row = 0;
  erase();
  for (const char *line = text; *line && row < LINES - 1; row++) {
    int size = (int)strcspn(line, "\n");
    attrset(is_heading(line, row) ? A_BOLD : A_NORMAL);
    mvaddnstr(row, 0, line, size < COLS ? size : COLS);
    line += line[size] ? size + 1 : size;
  }
  attrset(e->code ? A_REVERSE : A_DIM);
  mvaddnstr(LINES - 1, 0, e->code ? e->text : "q: quit", COLS);
  refresh();
}

static void draw_screen(const top_screen *s, const err *e) {
  char *text = NULL;
  size_t size;
  FILE *to = open_memstream(&text, &size);
  if (!to) return; /* out of memory: the screen stays as it is */
  top_screen_print(to, s);
  if (fclose(to) == 0) draw(text, e);
  free(text);
}

/* A server that is gone may come back: meanwhile the last line says so. */
static void watch(top_screen *s, server_link *l) {
  err e = {0};
  timeout(PERIOD_MS);
  draw_screen(s, &e);
  for (int key; (key = getch()) != 'q' && key != CONTROL_C; draw_screen(s, &e)) {
    if (key != ERR) continue; /* the window has another size, or any other key */
    e = (err){0};
    look(s, l, &e);
  }
}

static int show_live(top_screen *s, server_link *l) {
  SCREEN *screen = newterm(NULL, stdout, stdin);
  if (!screen)
    return command_error(STATUS_IO,
                         "cannot use this terminal: `tandem top --once' prints one screen of text");
  raw();
  noecho();
  curs_set(0);
  watch(s, l);
  endwin();
  delscreen(screen);
  return STATUS_OK;
}

int operate_top(const flags *f) {
  const char *url = f->given.argument_count ? f->given.arguments[0] : f->given.url;
  top_screen s = {.url = url};
  server_link *l;
  err e = {0};
  int rc = server_link_open(&l, url, f->given.api_keys, &e), code;
  if (rc == ERR_OK) rc = look(&s, l, &e);
  if (rc)
    code = report(&e);
  else
    code = f->given.once || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO) ? show_once(&s, l)
                                                                            : show_live(&s, l);
  top_screen_fini(&s);
  server_link_close(l);
  return code;
}
