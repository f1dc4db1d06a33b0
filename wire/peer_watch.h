/* peer_watch.h - watches a program to which this one connects, and tells the log when that program is absent
 * and when it comes. Pure. */
#pragma once

#include "wire/roster.h"

#define PEER_WATCH_FIRST_US 3000000  /* after so long, its absence is logged, */
#define PEER_WATCH_AGAIN_US 60000000 /* and again after each further interval */

typedef struct peer_watch {
  const char *endpoint; /* where that program listens; borrowed. NULL: there is none */
  peer_id peer;         /* the connection to it; 0: not made yet */
  bool here, came;      /* came: it was here before */
  bool reported;        /* its absence has been logged */
  uint64_t since_us;    /* when it last came or went */
  uint64_t tell_us;     /* when its absence is logged next; 0: not determined yet */
} peer_watch;

typedef enum {
  PEER_WATCH_NO_NEWS,
  PEER_WATCH_ABSENT, /* it has never come, since since_us */
  PEER_WATCH_SILENT, /* it was here */
  PEER_WATCH_HERE,   /* it came for the first time, before its absence was logged */
  PEER_WATCH_BACK    /* it came after its absence was logged */
} peer_watch_news;

/* Returns what has to be logged now. */
peer_watch_news peer_watch_look(peer_watch *p, roster *r, uint64_t now_us);
uint64_t peer_watch_deadline(const peer_watch *p);

/* Does the same for an orchestrator and writes the line of the log. */
void peer_watch_orchestrator(peer_watch *p, roster *r, uint64_t now_us, actions *out);
