/* top_screen.h - what `tandem top' shows, as lines of text: on a terminal, or once. */
#pragma once

#include "orchestrator/operate/top_sample.h"
#include <stdio.h>

#define TOP_SCREEN_WINDOW 60 /* samples, one a second: so long ago acceptance begins to count */

typedef struct top_screen { /* all zero at first, but for the url */
  const char *url;
  top_sample past[TOP_SCREEN_WINDOW]; /* a ring */
  int32_t count;                      /* samples that were added; the newest is the one before */
  json_t *slots, *workers;            /* of the newest */
} top_screen;

/* Adds a sample; takes both objects. */
void top_screen_add(top_screen *s, const top_sample *sample, json_t *slots, json_t *workers);
/* There must be a sample. Rates are over the time since the one before; without one they are 0. Only
 * printable ASCII. */
void top_screen_print(FILE *to, const top_screen *s);
void top_screen_fini(top_screen *s);
