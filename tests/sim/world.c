#include "tests/sim/world.h"

#include <string.h>

wire_id world_incarnation(world *w) {
  wire_id id = {{0}};
  uint64_t n = ++w->incarnations;
  memcpy(id.bytes, &n, 8);
  return id;
}

bool world_say(world *w, int from, int to, const msg *m) {
  bool before = w->says;
  w->says = true;
  bool said = net_forge(w->net, from, to, m);
  w->says = before;
  return said;
}

client *world_client(world *w, uint64_t id) {
  for (int i = 0; id && i < w->client_count; i++)
    if (w->clients[i].id == id) return &w->clients[i];
  return NULL;
}
