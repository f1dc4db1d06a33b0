#include "orchestrator/cli/show.h"

#include "common/base/terminal.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define EVERY_US      200000 /* its figures change at most this often: faster, nobody can read them */
#define COLOUR_DRAFT  32     /* green */
#define COLOUR_TARGET 36     /* cyan */
#define COLUMNS       80     /* where the terminal does not say */

static int put(void *context, const char *text, size_t size) {
  return async_output_add(context, text, size);
}

void show_init(show *s, show_when when, async_output *out) {
  *s = (show){.out = out, .wrap = {.put = put, .context = out}};
  s->colours = when == SHOW_ALWAYS || (when == SHOW_AUTO && terminal_takes_colours(out->fd));
  s->clean = isatty(out->fd);
  s->live = when != SHOW_NEVER && terminal_takes_colours(STDERR_FILENO);
}

bool show_wants_accepted(const show *s) {
  return s->colours || s->live;
}

/* ---- the text ---- */

static size_t columns_of(int fd) {
  struct winsize size = {0};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/* Of the text; where the terminal does not say, it has as many as one likes. */
static size_t text_columns(const show *s) {
  size_t columns = columns_of(s->out->fd);
  return columns ? columns : SIZE_MAX / 2;
}

static int say(show *s, const char *text, size_t size) {
  if (!s->wraps || !s->clean) return async_output_add(s->out, text, size);
  return word_wrap_add(&s->wrap, text_columns(s), text, size);
}

static int set_colour(show *s, int colour) {
  char code[16];
  if (!s->colours || colour == s->colour) return ERR_OK;
  s->colour = colour;
  int n = snprintf(code, sizeof code, "\033[%dm", colour);
  return say(s, code, (size_t)n);
}

/* The text that follows takes the place of the live line. */
static void erase(show *s) {
  static const char code[] = "\033[J";
  if (s->drawn && write(STDERR_FILENO, code, sizeof code - 1) < 0) s->live = false;
  s->drawn = false;
}

int show_text(show *s, const char *text, size_t size, bool accepted) {
  erase(s);
  int rc = set_colour(s, accepted ? COLOUR_DRAFT : COLOUR_TARGET);
  if (rc || !s->clean) return rc ? rc : say(s, text, size);
  char *clean = malloc(TERMINAL_CLEAN_MAX(size) + 1);
  if (!clean) return ERR_NOMEM;
  rc = say(s, clean, terminal_clean(clean, text, size));
  free(clean);
  return rc;
}

int show_end(show *s, const completion *c) {
  double plain = completion_plain_speed(c);
  if (plain > 0) s->plain = plain;
  erase(s);
  int rc = set_colour(s, 0);
  return rc == ERR_OK && s->wraps ? word_wrap_end(&s->wrap, text_columns(s)) : rc;
}

/* ---- the live line ---- */

void show_gain(double plain, double speed, char out[SHOW_GAIN_MAX]) {
  double gain = completion_gain(speed, plain);
  if (gain > 0)
    snprintf(out, SHOW_GAIN_MAX, "%.2f times plain decoding", gain);
  else
    snprintf(out, SHOW_GAIN_MAX, "plain decoding not measured yet");
}

void show_line(const show *s, const completion *c, uint64_t now_us, char out[SHOW_LINE_MAX]) {
  char gain[SHOW_GAIN_MAX];
  double speed = completion_speed_now(c, now_us), plain = completion_plain_speed(c);
  show_gain(plain > 0 ? plain : s->plain, speed, gain);
  char rate[32] = "too few to time";
  if (speed > 0) snprintf(rate, sizeof rate, "%.1f tok/s", speed);
  snprintf(out, SHOW_LINE_MAX, "%s, acceptance length %.2f, %s, %d of %d tokens from the draft", rate,
           completion_acceptance_length(c), gain, c->fresh_accepted, c->fresh);
}

static size_t columns(void) {
  size_t known = columns_of(STDERR_FILENO);
  return (known > 1 ? known : COLUMNS) - 1;
}

/* Index and reverse index make sure of a line below the text, also on the last line of the screen; then the
 * cursor is saved, the line is written, and the cursor goes back to where the text ends. */
static void draw(show *s) {
  char code[SHOW_LINE_MAX + 64];
  int n = snprintf(code, sizeof code, "\033D\033M\0337\033[B\r\033[0;2m%.*s\033[0m\033[K\0338",
                   (int)columns(), s->line);
  if (write(STDERR_FILENO, code, (size_t)n) < 0) s->live = false;
  s->drawn = true;
}

/* Text erases the line, which is drawn again as soon as the text is on the screen. */
void show_progress(show *s, const completion *c, uint64_t now_us) {
  bool waits = !s->live || c->fresh == 0 || c->finish || !async_output_idle(s->out);
  bool old = now_us - s->made_us >= EVERY_US;
  if (waits || (s->drawn && !old)) return;
  if (old) {
    show_line(s, c, now_us, s->line);
    s->made_us = now_us;
  }
  draw(s);
}
