/* net.h - a seeded network under a virtual clock: delays, reorders, loses and repeats frames between
 * programs, and connects DEALERs to whoever owns an address now. Frames cross it encoded, so the codec is
 * part of every run. */
#pragma once

#include "wire/machine.h"

#define NET_NODES 8
#define NET_LINKS 128

typedef struct net_totals {
  uint64_t events, sent, delivered, lost, repeated, reordered, desync, resend, tree_reset, restarts, forged;
} net_totals;

typedef struct net net;

typedef struct net_faults {        /* per frame, in 1/1000 */
  uint32_t lose, repeat, straggle; /* straggle: an extra delay that lets others overtake */
  uint32_t forge; /* TOKENS followed by one that overlaps it with other tokens and goes on with wrong ones */
} net_faults;

net *net_open(uint64_t seed, net_totals *totals);
void net_close(net *n);
uint64_t net_random(net *n);
uint64_t net_now(const net *n);
void net_set_faults(net *n, net_faults f);
/* Frames between these two nodes take so much longer, either way. */
void net_set_distance(net *n, int a, int b, uint64_t us);

/* A program on the network. Its machine may be replaced after a stop: a restart with the same address. */
void net_start(net *n, int node, const char *address, machine m);
void net_stop(net *n, int node);               /* its connections are gone, frames in flight to it are lost */
void net_pause(net *n, int node, bool paused); /* SIGSTOP: frames and ticks wait */

/* An event for a node now; its actions are carried out. */
void net_step(net *n, int node, const event *e);
void net_perform(net *n, int node, actions *a);

/* A frame in a program's name, on its own connection to another node; false when it has none. */
bool net_forge(net *n, int from, int to, const msg *m);

/* Something of the world's own at a later time: net_run returns its number when it is due. */
void net_alarm(net *n, uint64_t at_us, int number);

/* One event: returns -2; or the number of an alarm that is due; or -1 when nothing is left before `until_us`.
 */
int net_run(net *n, uint64_t until_us);
