#include "tests/sim/net.h"

#include "wire/codec.h"
#include "tests/support/random.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One connection: made by `from` to an address; it outlives restarts of the side that owns the address. */
typedef struct link {
  bool used;
  int from, to; /* nodes; to -1: nobody is there now */
  char address[64];
  peer_id at_from, at_to;
  uint32_t life; /* grows when the connection breaks: frames in flight are lost then */
} link;

typedef enum { ENTRY_FRAME, ENTRY_CONNECTED, ENTRY_DISCONNECTED, ENTRY_ALARM } entry_kind;

typedef struct entry {
  uint64_t at, order;
  entry_kind kind;
  int node;      /* receiver, or the alarm's number */
  uint32_t life; /* the receiver's, when it was sent */
  int link;      /* of a frame, */
  uint32_t link_life;
  peer_id peer;
  uint64_t tag;
  uint8_t *data;
  size_t size;
} entry;

typedef struct node {
  bool running, paused;
  uint32_t life;
  char address[64];
  machine machine;
  uint64_t deadline; /* of the machine, by the network's clock */
  bool stepped;      /* so it is to be asked for again */
  uint64_t ahead_us; /* of the network's clock: what was slept through, and */
  uint32_t drift;    /* in 1/1024 */
  int32_t waiting;   /* frames on their way to it */
} node;

struct net {
  uint64_t random, now, order, next_peer;
  int repeats; /* events at this very moment */
  net_faults faults;
  int queue; /* frames that may be on their way to one node; the others are dropped. 0: any number */
  bool cut[NET_NODES][NET_NODES];
  int far[2]; /* the nodes between which frames take far_us longer */
  uint64_t far_us;
  net_totals *totals;
  node nodes[NET_NODES];
  link links[NET_LINKS];
  int link_count; /* the others were never used */
  entry *heap;
  size_t count, capacity;
  arena memory;
  codec_buffer buffer;
  actions actions;
  uint64_t last_order[NET_NODES]; /* newest order delivered: to count reordering */
  int last;                       /* the node that was stepped last */
  bool logs;
  net_watcher watcher;
  void *watcher_context;
};

net *net_open(uint64_t seed, net_totals *totals) {
  net *n = calloc(1, sizeof *n);
  n->random = seed * 0x9E3779B97F4A7C15u + 1;
  n->totals = totals;
  n->now = 1000000;
  n->logs = getenv("SIM_LOG");
  arena_init(&n->memory, 4u << 20);
  actions_init(&n->actions);
  return n;
}

void net_close(net *n) {
  for (size_t i = 0; i < n->count; i++) free(n->heap[i].data);
  free(n->heap);
  arena_fini(&n->memory);
  codec_buffer_fini(&n->buffer);
  actions_fini(&n->actions);
  free(n);
}

uint64_t net_random(net *n) {
  return random_next(&n->random);
}

uint64_t net_now(const net *n) {
  return n->now;
}

uint64_t net_clock(const net *n, int index) {
  const node *p = &n->nodes[index];
  return n->now + p->ahead_us + n->now * p->drift / 1024;
}

/* When the node's clock shows `at`, or a little later. */
static uint64_t net_time_of(const node *p, uint64_t at) {
  if (at == MACHINE_NEVER || at <= p->ahead_us) return at == MACHINE_NEVER ? at : 0;
  return p->drift ? (at - p->ahead_us) * 1024 / (1024 + p->drift) + 1 : at - p->ahead_us;
}

void net_touch(net *n, int index) {
  n->nodes[index].stepped = true;
}

void net_set_drift(net *n, int index, uint32_t drift) {
  n->nodes[index].ahead_us += n->now * n->nodes[index].drift / 1024; /* what it is ahead by now, stays */
  n->nodes[index].drift = drift;
  net_touch(n, index);
}

void net_jump(net *n, int index, uint64_t us) {
  n->nodes[index].ahead_us += us;
  net_touch(n, index);
}

void net_cut(net *n, int from, int to, bool is_cut) {
  n->cut[from][to] = is_cut;
}

void net_set_queue(net *n, int frames) {
  n->queue = frames;
}

void net_watch(net *n, net_watcher watcher, void *context) {
  n->watcher = watcher;
  n->watcher_context = context;
}

int net_last(const net *n) {
  return n->last;
}

void net_set_distance(net *n, int a, int b, uint64_t us) {
  n->far[0] = a;
  n->far[1] = b;
  n->far_us = us;
}

void net_set_faults(net *n, net_faults f) {
  n->faults = f;
}

static bool chance(net *n, uint32_t per_thousand) {
  return net_random(n) % 1000 < per_thousand;
}

/* --- the queue: a binary heap by (time, order) --- */

static bool before(const entry *a, const entry *b) {
  return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void push(net *n, entry e) {
  if (n->count == n->capacity) {
    n->capacity = n->capacity ? 2 * n->capacity : 256;
    n->heap = realloc(n->heap, n->capacity * sizeof *n->heap);
    assert(n->heap);
  }
  e.order = ++n->order;
  size_t i = n->count++;
  while (i > 0 && before(&e, &n->heap[(i - 1) / 2])) {
    n->heap[i] = n->heap[(i - 1) / 2];
    i = (i - 1) / 2;
  }
  n->heap[i] = e;
}

static entry pop(net *n) {
  entry top = n->heap[0], last = n->heap[--n->count];
  size_t i = 0;
  for (size_t child; (child = 2 * i + 1) < n->count; i = child) {
    if (child + 1 < n->count && before(&n->heap[child + 1], &n->heap[child])) child++;
    if (!before(&n->heap[child], &last)) break;
    n->heap[i] = n->heap[child];
  }
  n->heap[i] = last;
  return top;
}

/* --- links --- */

static int owner(const net *n, const char *address) {
  for (int i = 0; i < NET_NODES; i++)
    if (n->nodes[i].running && strcmp(n->nodes[i].address, address) == 0) return i;
  return -1;
}

void net_start(net *n, int index, const char *address, machine m) {
  node *p = &n->nodes[index];
  *p = (node){.running = true,
              .life = p->life + 1,
              .machine = m,
              .stepped = true,
              .ahead_us = p->ahead_us,
              .drift = p->drift};
  snprintf(p->address, sizeof p->address, "%s", address);
  for (int i = 0; i < n->link_count; i++) { /* DEALERs that wait for this address reconnect, as strangers */
    link *l = &n->links[i];
    if (!l->used || strcmp(l->address, address) != 0 || !*address) continue;
    l->to = index;
    l->at_to = ++n->next_peer;
  }
}

void net_stop(net *n, int index) {
  n->nodes[index].running = false;
  n->nodes[index].life++;
  n->nodes[index].waiting = 0;
  n->totals->restarts++;
  for (int i = 0; i < n->link_count; i++) {
    link *l = &n->links[i];
    if (l->used && l->from == index) l->used = false;
    if (l->used && l->to == index) l->to = -1;
  }
}

void net_pause(net *n, int index, bool paused) {
  n->nodes[index].paused = paused;
}

bool net_is_paused(const net *n, int index) {
  return n->nodes[index].paused;
}

void net_reconnect(net *n, int from) {
  for (int i = 0; i < n->link_count; i++) {
    link *l = &n->links[i];
    if (!l->used || l->from != from) continue;
    l->life++;
    if (l->to < 0) continue;
    push(n, (entry){.at = n->now,
                    .kind = ENTRY_DISCONNECTED,
                    .node = l->to,
                    .life = n->nodes[l->to].life,
                    .peer = l->at_to});
  }
}

static void connect_to(net *n, int from, uint64_t tag, const char *address) {
  for (int i = 0; i < NET_LINKS; i++) {
    link *l = &n->links[i];
    if (l->used) continue;
    if (i == n->link_count) n->link_count++;
    *l = (link){.used = true,
                .from = from,
                .to = owner(n, address),
                .at_from = ++n->next_peer,
                .at_to = ++n->next_peer};
    snprintf(l->address, sizeof l->address, "%s", address);
    push(n, (entry){.at = n->now,
                    .kind = ENTRY_CONNECTED,
                    .node = from,
                    .life = n->nodes[from].life,
                    .peer = l->at_from,
                    .tag = tag});
    return;
  }
  assert(!"NET_LINKS is too small");
}

static void count_kind(net *n, msg_type type) {
  n->totals->desync += type == MSG_DESYNC;
  n->totals->parts += type == MSG_PART;
  n->totals->resend += type == MSG_RESEND;
  n->totals->tree_reset += type == MSG_TREE_RESET;
  n->totals->tokens += type == MSG_TOKENS;
}

static void carry(net *n, int index, int to, peer_id at_to, uint64_t delay) {
  n->nodes[to].waiting++;
  uint8_t *copy = malloc(n->buffer.size);
  assert(copy);
  memcpy(copy, n->buffer.data, n->buffer.size);
  push(n, (entry){.at = n->now + delay,
                  .kind = ENTRY_FRAME,
                  .node = to,
                  .life = n->nodes[to].life,
                  .link = index,
                  .link_life = n->links[index].life,
                  .peer = at_to,
                  .data = copy,
                  .size = n->buffer.size});
}

/* Somebody's idea of the stream: the last token told another one, and one more behind it. */
static void send_frame(net *n, int from, peer_id peer, const msg *m);
static void send_forged(net *n, int from, peer_id peer, const msg *m) {
  const msg_tokens *t = &m->u.tokens;
  if (t->token_count == 0) return;
  int32_t tokens[2] = {(t->tokens[t->token_count - 1] + 1) % 6, (int32_t)(net_random(n) % 6)};
  msg forged = *m;
  forged.u.tokens.base_length = t->base_length + t->token_count - 1;
  forged.u.tokens.tokens = tokens;
  forged.u.tokens.token_count = 2;
  forged.u.tokens.accepted_size = 0;
  n->totals->forged++;
  send_frame(n, from, peer, &forged);
}

/* Features of another position, width or type, or that are no numbers. */
static void send_forged_features(net *n, int from, peer_id peer, const msg *m) {
  uint8_t rows[64];
  msg forged = *m;
  msg_features *f = &forged.u.features;
  memset(rows, net_random(n) % 4 == 0 ? 0xFF : 0x3F, sizeof rows);
  f->base += (int32_t)(net_random(n) % (net_random(n) % 2 ? 4 : 200));
  f->count = (int32_t)(net_random(n) % 3);
  if (net_random(n) % 2) f->width = 1 + (int32_t)(net_random(n) % 5);
  if (net_random(n) % 4 == 0) f->type = net_random(n) % 2 ? WIRE_F32 : WIRE_BF16;
  f->rows = rows;
  f->size = (uint32_t)(f->count * f->width) * wire_type_size(f->type);
  n->totals->forged++;
  send_frame(n, from, peer, &forged);
}

static void log_frame(const net *n, int from, peer_id peer, const msg *m) {
  wire_string text = m->type == MSG_ERROR ? m->u.error.text : wire_text("");
  fprintf(stderr, "%10.3f node %d -> peer %llu: %s of %04x in epoch %u %.*s\n", (double)n->now / 1e6, from,
          (unsigned long long)peer, msg_name(m->type), (unsigned)(m->session & 0xFFFF), m->epoch,
          (int)text.size, (const char *)text.data);
}

static void send_frame(net *n, int from, peer_id peer, const msg *m) {
  n->totals->sent++;
  count_kind(n, m->type);
  if (n->logs) log_frame(n, from, peer, m);
  for (int i = 0; i < n->link_count; i++) {
    const link *l = &n->links[i];
    if (!l->used) continue;
    bool forth = l->from == from && l->at_from == peer, back = l->to == from && l->at_to == peer;
    if (!forth && !back) continue;
    int to = forth ? l->to : l->from;
    if (n->watcher) n->watcher(n->watcher_context, from, to, m);
    if (to < 0) return; /* nobody is there: the queue of a DEALER is not modelled */
    err e;
    int rc = codec_encode(m, &n->buffer, &e);
    if (rc != ERR_OK) fprintf(stderr, "sim: cannot encode %s: %s\n", msg_name(m->type), e.text);
    assert(rc == ERR_OK);
    bool full = n->queue && n->nodes[to].waiting >= n->queue;
    n->totals->dropped_full += full;
    n->totals->dropped_cut += n->cut[from][to];
    if (full || n->cut[from][to] || chance(n, n->faults.lose)) {
      n->totals->lost++;
      return;
    }
    int copies = chance(n, n->faults.repeat) ? 2 : 1;
    n->totals->repeated += copies == 2;
    while (copies--) {
      bool far = (from == n->far[0] && to == n->far[1]) || (from == n->far[1] && to == n->far[0]);
      uint64_t delay = 20 + net_random(n) % 200 + (far ? n->far_us : 0);
      if (copies > 0 || chance(n, n->faults.straggle)) delay += net_random(n) % 400000;
      carry(n, i, to, forth ? l->at_to : l->at_from, delay);
    }
    return;
  }
}

peer_id net_peer(const net *n, int at, int other) {
  for (int i = 0; i < n->link_count; i++) {
    const link *l = &n->links[i];
    if (l->used && l->from == other && l->to == at) return l->at_to;
    if (l->used && l->from == at && l->to == other) return l->at_from;
  }
  return 0;
}

bool net_forge(net *n, int from, int to, const msg *m) {
  for (int i = 0; i < n->link_count; i++) {
    const link *l = &n->links[i];
    bool forth = l->used && l->from == from && l->to == to, back = l->used && l->to == from && l->from == to;
    if (!forth && !back) continue;
    n->totals->forged++;
    send_frame(n, from, forth ? l->at_from : l->at_to, m);
    return true;
  }
  return false;
}

static void disconnect(net *n, int from, peer_id peer) {
  for (int i = 0; i < n->link_count; i++)
    if (n->links[i].used && n->links[i].from == from && n->links[i].at_from == peer) n->links[i].used = false;
}

void net_perform(net *n, int index, actions *a) {
  net_touch(n, index);
  for (int32_t i = 0; i < a->count; i++) {
    const action *x = &a->list[i];
    switch (x->kind) {
    case ACTION_SEND:
      send_frame(n, index, x->peer, x->message);
      if (x->message->type == MSG_TOKENS && chance(n, n->faults.forge))
        send_forged(n, index, x->peer, x->message);
      if (x->message->type == MSG_FEATURES && chance(n, n->faults.forge))
        send_forged_features(n, index, x->peer, x->message);
      break;
    case ACTION_CONNECT:
      connect_to(n, index, x->tag, x->text);
      break;
    case ACTION_DISCONNECT:
      disconnect(n, index, x->peer);
      break;
    case ACTION_LOG:
      if (n->logs) fprintf(stderr, "%10.3f node %d: %s\n", (double)n->now / 1e6, index, x->text);
      break;
    case ACTION_EXIT:
      break;
    }
  }
  actions_reset(a);
}

void net_step(net *n, int index, const event *e) {
  node *p = &n->nodes[index];
  n->totals->events++;
  n->last = index;
  p->machine.step(p->machine.self, e, net_clock(n, index), &n->actions);
  net_perform(n, index, &n->actions);
}

void net_alarm(net *n, uint64_t at_us, int number) {
  push(n, (entry){.at = at_us, .kind = ENTRY_ALARM, .node = number});
}

static void deliver(net *n, entry *e) {
  node *p = &n->nodes[e->node];
  if (!p->running || p->life != e->life) return;
  if (e->kind == ENTRY_FRAME && !p->paused) p->waiting--;
  if (e->kind == ENTRY_FRAME && n->links[e->link].life != e->link_life) return;
  if (p->paused) { /* it waits in the socket */
    entry later = *e;
    later.at = n->now + 10000;
    e->data = NULL;
    push(n, later);
    return;
  }
  event ev = {.peer = e->peer, .tag = e->tag};
  msg m;
  err why;
  if (e->kind == ENTRY_CONNECTED)
    ev.kind = EVENT_CONNECTED;
  else if (e->kind == ENTRY_DISCONNECTED)
    ev.kind = EVENT_DISCONNECTED;
  else {
    arena_reset(&n->memory);
    if (codec_decode(e->data, e->size, &n->memory, &m, &why) != ERR_OK) {
      fprintf(stderr, "sim: a frame of ours does not decode: %s\n", why.text);
      abort();
    }
    ev.kind = EVENT_MESSAGE;
    ev.message = &m;
    n->totals->delivered++;
    if (e->order < n->last_order[e->node])
      n->totals->reordered++;
    else
      n->last_order[e->node] = e->order;
  }
  net_step(n, e->node, &ev);
}

/* The earliest deadline of a running machine. */
static uint64_t next_tick(net *n, int *which) {
  uint64_t at = MACHINE_NEVER;
  for (int i = 0; i < NET_NODES; i++) {
    node *p = &n->nodes[i];
    if (!p->running || p->paused) continue;
    if (p->stepped) p->deadline = net_time_of(p, p->machine.deadline(p->machine.self));
    p->stepped = false;
    if (p->deadline >= at) continue;
    at = p->deadline;
    *which = i;
  }
  return at;
}

int net_run(net *n, uint64_t until_us) {
  for (;;) {
    int which = 0;
    uint64_t tick = next_tick(n, &which);
    uint64_t frame = n->count ? n->heap[0].at : MACHINE_NEVER;
    uint64_t next = tick < frame ? tick : frame;
    if (next > until_us) {
      n->now = until_us;
      return -1;
    }
    n->repeats = next > n->now ? 0 : n->repeats + 1;
    if (n->repeats >= 100000)
      fprintf(stderr, "sim: node %d wants a tick at %llu, now %llu\n", which, (unsigned long long)tick,
              (unsigned long long)n->now);
    assert(n->repeats < 100000); /* a deadline that never passes */
    if (next > n->now) n->now = next;
    if (tick < frame) {
      net_step(n, which, &(event){.kind = EVENT_TICK});
      return -2; /* a step was made: the world may look */
    }
    entry e = pop(n);
    if (e.kind == ENTRY_ALARM) return e.node;
    deliver(n, &e);
    free(e.data);
    return -2;
  }
}
