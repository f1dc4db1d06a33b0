/* clients.h - who asks: requests, cancels, and what happens to them when the orchestrator comes again. */
#pragma once

#include "tests/sim/world.h"

void clients_plan(world *w);              /* the first requests */
void clients_plan_again(world *w);        /* the next ones; many go on with a conversation */
void clients_start(world *w, client *c);  /* of ALARM_START */
void clients_cancel(world *w, client *c); /* of ALARM_CANCEL */
void clients_return(world *w);            /* the orchestrator is here again: sessions go on from the disk */
void clients_move_on(world *w);           /* those whose session another orchestrator has taken over */
bool clients_finished(const world *w);
