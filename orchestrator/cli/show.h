/* show.h - shows an answer as it comes: text from the draft in one colour and text from the target in
 * another, and below it a live line on stderr with the speed, the acceptance length and the gain over plain
 * decoding. */
#pragma once

#include "orchestrator/cli/async_output.h"
#include "orchestrator/cli/word_wrap.h"
#include "orchestrator/service/completion.h"

typedef enum {
  SHOW_NEVER,
  SHOW_AUTO,  /* colours on a terminal that has them, unless NO_COLOR is set */
  SHOW_ALWAYS /* colours wherever the text goes */
} show_when;

#define SHOW_LINE_MAX 200
/* What the colours mean, in words: a legend in colours would be lost where stderr goes elsewhere. */
#define SHOW_LEGEND "green: guessed by the draft; cyan: chosen by the target alone"

typedef struct show {
  async_output *out; /* borrowed: gets the text */
  bool colours;      /* of the text */
  bool clean;        /* a terminal shows it: control characters are made visible */
  bool wraps;        /* words of a text for a terminal stay whole; set by the owner */
  word_wrap wrap;
  bool live;        /* there is a live line, which needs a terminal that takes colours */
  int colour;       /* that is on now: an SGR number; 0: none */
  bool drawn;       /* the live line is on the screen */
  double plain;     /* tokens a second of plain decoding, as measured in earlier answers; 0: not yet */
  uint64_t made_us; /* when its figures were taken */
  char line[SHOW_LINE_MAX];
} show;

/* The text goes to out, whose fd says what it is. */
void show_init(show *s, show_when when, async_output *out);
bool show_wants_accepted(const show *s); /* should the completion ask which tokens were accepted? */

int show_text(show *s, const char *text, size_t size, bool accepted); /* ERR_NOMEM */
/* Draws the live line, if all of the text is on the screen: to be called with each news of the answer, and
 * when out has become idle. */
void show_progress(show *s, const completion *c, uint64_t now_us);
/* The end of an answer: colours are off, the live line is erased, and the plain speed that the target has
 * reported is kept for the next answer. ERR_NOMEM. */
int show_end(show *s, const completion *c);

/* What the live line says, without the escapes. */
void show_line(const show *s, const completion *c, uint64_t now_us, char out[SHOW_LINE_MAX]);
/* The gain over plain decoding at `speed` tokens a second: "1.62 times plain", or that nothing was measured.
 */
#define SHOW_GAIN_MAX 64
void show_gain(double plain, double speed, char out[SHOW_GAIN_MAX]);
