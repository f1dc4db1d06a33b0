/* net.h - a seeded network under a virtual clock: delays, reorders, loses and repeats frames between
 * programs, and connects DEALERs to whoever owns an address now. Frames cross it encoded, so the codec is
 * part of every run. */
#pragma once

#include "wire/machine.h"

#define NET_NODES 8
#define NET_LINKS 128

typedef struct net_totals {
  uint64_t events, sent, delivered, lost, repeated, reordered, desync, parts, resend, tree_reset, tokens,
      restarts, forged, dropped_full, dropped_cut;
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
uint64_t net_clock(const net *n, int node); /* as that program reads it: its machine is given this time */
void net_set_faults(net *n, net_faults f);
/* Frames between these two nodes take so much longer, either way. */
void net_set_distance(net *n, int a, int b, uint64_t us);

/* The program's clock runs faster than the network's, by so many 1024ths, or jumps ahead, as after a sleep.
 */
void net_set_drift(net *n, int node, uint32_t drift);
void net_jump(net *n, int node, uint64_t us);
/* Frames from one node to another are lost, until that ends. */
void net_cut(net *n, int from, int to, bool is_cut);
/* A node's queues hold so many frames, and further ones are dropped; 0: any number. */
void net_set_queue(net *n, int frames);
/* Called with each frame before it may be lost. `to` is -1 where nobody is. */
typedef void (*net_watcher)(void *context, int from, int to, const msg *m);
void net_watch(net *n, net_watcher watcher, void *context);

/* A program on the network. Its machine may be replaced after a stop: a restart with the same address. */
void net_start(net *n, int node, const char *address, machine m);
void net_stop(net *n, int node);               /* its connections are gone, frames in flight to it are lost */
void net_pause(net *n, int node, bool paused); /* SIGSTOP: frames and ticks wait */

bool net_is_paused(const net *n, int node);

/* All connections that the node has made break and are made again: frames in flight are lost. */
void net_reconnect(net *n, int node);
/* A machine was changed by a call of its own, so its deadline may be another one. */
void net_touch(net *n, int node);

/* An event for a node now; its actions are carried out. */
void net_step(net *n, int node, const event *e);
void net_perform(net *n, int node, actions *a);

/* A frame in a program's name, on its own connection to another node; false when it has none. */
bool net_forge(net *n, int from, int to, const msg *m);
peer_id net_peer(const net *n, int at, int other); /* that connection's name at `at`; 0: there is none */

/* Something of the world's own at a later time: net_run returns its number when it is due. */
void net_alarm(net *n, uint64_t at_us, int number);

/* One event: returns -2; or the number of an alarm that is due; or -1 when nothing is left before `until_us`.
 */
int net_run(net *n, uint64_t until_us);
int net_last(const net *n); /* the node that was stepped last */
