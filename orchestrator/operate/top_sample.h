/* top_sample.h - what a server says of itself at one moment. Pure. */
#pragma once

#include <jansson.h>
#include <stdint.h>

typedef struct top_sample {
  uint64_t time_us;
  double running, waiting, slots;     /* answers */
  double ended, failed;               /* since the server began, as all below; failed: with an error */
  double tokens;                      /* of answers that have ended, and so far of those that run */
  double verifies, drafted, accepted; /* of answers that have ended */
  double sent_bytes, received_bytes;  /* of the server's links to workers */
} top_sample;

/* Takes the figures from the text of /metrics and from the objects of /slots. */
void top_sample_read(top_sample *s, const char *metrics, const json_t *slots, uint64_t now_us);
/* The value of all lines of one metric together; `label` (NULL: any) must be in the line. */
double top_sample_metric(const char *metrics, const char *name, const char *label);

/* What grew by so much, a second; 0 where the server was started again between them. */
double top_sample_rate(double before, double after, const top_sample *from, const top_sample *to);
