/* presence.h - tells in the log when a program that this one calls is not there, and when it is. Pure. */
#pragma once

#include "wire/roster.h"

#define PRESENCE_FIRST_US 3000000  /* absent for so long: told; */
#define PRESENCE_AGAIN_US 60000000 /* and told again every so often */

typedef struct presence {
  const char *endpoint; /* that is called; borrowed. NULL: nobody is */
  peer_id peer;         /* the connection to it; 0: not made yet */
  bool here, came;      /* came: it was here before */
  bool told;            /* that it is not here */
  uint64_t since_us;    /* it is not here, or is */
  uint64_t tell_us;     /* when it is next told that it is not; 0: not reckoned yet */
} presence;

typedef enum {
  PRESENCE_NO_NEWS,
  PRESENCE_ABSENT, /* it has not come, for since_us */
  PRESENCE_SILENT, /* it was here */
  PRESENCE_HERE,   /* for the first time, and soon */
  PRESENCE_BACK    /* after it was told that it is not */
} presence_news;

/* What is worth a line, at this moment. */
presence_news presence_look(presence *p, roster *r, uint64_t now_us);
uint64_t presence_deadline(const presence *p);

/* Looks at an orchestrator, and writes the line. */
void presence_orchestrator(presence *p, roster *r, uint64_t now_us, actions *out);
