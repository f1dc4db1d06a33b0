#include "orchestrator/sessions/hung_targets.h"

void hung_targets_add(hung_targets *h, peer_id target, uint64_t now_us) {
  int slot = 0;
  for (int i = 0; i < HUNG_TARGETS_MAX && h->list[slot].peer != target; i++)
    if (h->list[i].peer == target || h->list[i].until_us < h->list[slot].until_us) slot = i;
  h->list[slot].peer = target;
  h->list[slot].until_us = now_us + HUNG_TARGETS_US;
}

bool hung_targets_has(const hung_targets *h, peer_id target, uint64_t now_us) {
  for (int i = 0; i < HUNG_TARGETS_MAX; i++)
    if (h->list[i].peer == target && now_us < h->list[i].until_us) return true;
  return false;
}

void hung_targets_remove(hung_targets *h, peer_id target) {
  for (int i = 0; i < HUNG_TARGETS_MAX; i++)
    if (h->list[i].peer == target) {
      h->list[i].peer = 0;
      h->list[i].until_us = 0;
    }
}
