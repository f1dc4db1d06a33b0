#include "wire/peer_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int peer_table_init(peer_table *p) {
  *p = (peer_table){.slots = calloc(PEER_TABLE_MAX, sizeof *p->slots),
                    .buckets = malloc(PEER_TABLE_MAX * sizeof *p->buckets)};
  if (!p->slots || !p->buckets) {
    peer_table_fini(p);
    return ERR_NOMEM;
  }
  for (int32_t i = 0; i < PEER_TABLE_MAX; i++) p->buckets[i] = -1;
  return ERR_OK;
}

void peer_table_fini(peer_table *p) {
  free(p->slots);
  free(p->buckets);
  *p = (peer_table){0};
}

static int32_t *bucket_of(peer_table *p, const void *routing, size_t size) {
  hash16 h = hash_bytes(routing, size);
  return &p->buckets[(h.bytes[0] | h.bytes[1] << 8) % PEER_TABLE_MAX];
}

/* The link in a bucket's chain that leads to `gone`. */
static int32_t *chain_to(peer_table *p, const peer *gone) {
  int32_t *at = bucket_of(p, gone->routing, gone->routing_size), slot = (int32_t)(gone - p->slots);
  while (*at != slot) at = &p->slots[*at].next;
  return at;
}

void peer_table_remove(peer_table *p, peer *gone) {
  assert(gone->id);
  if (gone->pinned)
    p->pinned_count--;
  else
    *chain_to(p, gone) = gone->next;
  gone->id = 0;
}

static bool goes_before(const peer *a, const peer *b) {
  if (!b || a->greeted != b->greeted) return !b || b->greeted;
  return a->used < b->used;
}

/* A free slot, or that of the longest silent stranger, or peer, that is not pinned. */
static peer *take_slot(peer_table *p) {
  peer *oldest = NULL;
  for (int32_t i = 0; i < PEER_TABLE_MAX; i++) {
    peer *candidate = &p->slots[i];
    if (candidate->id == 0) return candidate;
    if (!candidate->pinned && goes_before(candidate, oldest)) oldest = candidate;
  }
  assert(oldest); /* PEER_TABLE_PINNED_MAX leaves room */
  peer_table_remove(p, oldest);
  p->forgotten++;
  return oldest;
}

static peer *fill_slot(peer_table *p, void *link, bool pinned) {
  peer *fresh = take_slot(p);
  *fresh = (peer){.link = link, .pinned = pinned, .used = ++p->uses, .next = -1};
  fresh->id = ++p->serial * PEER_TABLE_MAX + (uint64_t)(fresh - p->slots);
  return fresh;
}

static peer *find_routing(peer_table *p, const void *routing, size_t size) {
  for (int32_t i = *bucket_of(p, routing, size); i >= 0; i = p->slots[i].next) {
    peer *known = &p->slots[i];
    if (known->routing_size == size && memcmp(known->routing, routing, size) == 0) return known;
  }
  return NULL;
}

peer *peer_table_of_routing(peer_table *p, void *link, const void *routing, size_t size, const char *user) {
  assert(size <= PEER_TABLE_ROUTING_MAX && strlen(user) < PEER_TABLE_USER_MAX);
  peer *known = find_routing(p, routing, size);
  if (known && strcmp(known->user, user) == 0) {
    known->used = ++p->uses;
    return known;
  }
  if (known) peer_table_remove(p, known);
  int32_t *bucket = bucket_of(p, routing, size);
  peer *fresh = fill_slot(p, link, false);
  memcpy(fresh->routing, routing, size);
  strcpy(fresh->user, user);
  fresh->routing_size = (uint32_t)size;
  fresh->next = *bucket;
  *bucket = (int32_t)(fresh - p->slots);
  return fresh;
}

peer *peer_table_pin(peer_table *p, void *link) {
  if (p->pinned_count == PEER_TABLE_PINNED_MAX) return NULL;
  p->pinned_count++;
  return fill_slot(p, link, true);
}

peer *peer_table_of_connection(peer_table *p, int connection) {
  for (int32_t i = 0; connection > 0 && i < PEER_TABLE_MAX; i++)
    if (p->slots[i].id && p->slots[i].connection == connection) return &p->slots[i];
  return NULL;
}

peer *peer_table_find(peer_table *p, peer_id id) {
  peer *found = &p->slots[id % PEER_TABLE_MAX];
  if (id == 0 || found->id != id) return NULL;
  found->used = ++p->uses;
  return found;
}
