/* peer_watch.h - watches a program that this one calls, and says in the log when it is absent and when it
 * comes. Pure. */
#pragma once

#include "wire/roster.h"

#define PEER_WATCH_FIRST_US 3000000  /* absent for so long: told; */
#define PEER_WATCH_AGAIN_US 60000000 /* and told again every so often */

typedef struct peer_watch {
  const char *endpoint; /* that is called; borrowed. NULL: nobody is */
  peer_id peer;         /* the connection to it; 0: not made yet */
  bool here, came;      /* came: it was here before */
  bool reported;        /* that it is not here */
  uint64_t since_us;    /* it is not here, or is */
  uint64_t tell_us;     /* when it is next told that it is not; 0: not reckoned yet */
} peer_watch;

typedef enum {
  PEER_WATCH_NO_NEWS,
  PEER_WATCH_ABSENT, /* it has not come, for since_us */
  PEER_WATCH_SILENT, /* it was here */
  PEER_WATCH_HERE,   /* for the first time, and soon */
  PEER_WATCH_BACK    /* after it was told that it is not */
} peer_watch_news;

/* What is worth a line, at this moment. */
peer_watch_news peer_watch_look(peer_watch *p, roster *r, uint64_t now_us);
uint64_t peer_watch_deadline(const peer_watch *p);

/* Looks at an orchestrator, and writes the line. */
void peer_watch_orchestrator(peer_watch *p, roster *r, uint64_t now_us, actions *out);
