/* libs: wire base */
#include "wire/peer_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static void test_the_peer_that_was_silent_longest_is_forgotten(void **state) {
  (void)state;
  peer_table p;
  int tag;
  assert_int_equal(peer_table_init(&p), ERR_OK);
  peer_id pinned = peer_table_pin(&p, &tag)->id, ids[PEER_TABLE_MAX + 10];
  for (uint32_t i = 0; i < PEER_TABLE_MAX + 10; i++) {
    ids[i] = peer_table_of_routing(&p, &tag, &i, sizeof i, "")->id;
    if (i > 3) assert_non_null(peer_table_find(&p, ids[3])); /* 3 is in use all the time */
  }
  assert_int_equal(p.forgotten, 11); /* 1034 and a pinned one do not fit into 1024 */
  assert_non_null(peer_table_find(&p, pinned));
  assert_non_null(peer_table_find(&p, ids[3]));
  for (uint32_t i = 0; i < 12; i++)
    if (i != 3) assert_null(peer_table_find(&p, ids[i]));
  for (uint32_t i = 12; i < PEER_TABLE_MAX + 10; i++) {
    assert_non_null(peer_table_find(&p, ids[i]));
    assert_int_equal(peer_table_of_routing(&p, &tag, &i, sizeof i, "")->id, ids[i]);
  }
  uint32_t zero = 0;
  peer_id again = peer_table_of_routing(&p, &tag, &zero, sizeof zero, "")->id;
  for (uint32_t i = 0; i < PEER_TABLE_MAX + 10; i++) assert_true(again != ids[i]); /* never the same number */
  peer_table_fini(&p);
}

/* Those that nobody has greeted are forgotten first, however lately they spoke. */
static void test_strangers_are_forgotten_first(void **state) {
  (void)state;
  peer_table p;
  int tag;
  assert_int_equal(peer_table_init(&p), ERR_OK);
  peer_id ids[20];
  for (uint32_t i = 0; i < 20; i++) {
    peer *known = peer_table_of_routing(&p, &tag, &i, sizeof i, "");
    ids[i] = known->id;
    known->greeted = true;
  }
  for (uint32_t i = 100; i < 100 + 3 * PEER_TABLE_MAX; i++) peer_table_of_routing(&p, &tag, &i, sizeof i, "");
  for (uint32_t i = 0; i < 20; i++) assert_non_null(peer_table_find(&p, ids[i]));
  peer_table_fini(&p);
}

static void test_a_peer_is_found_by_its_connection(void **state) {
  (void)state;
  peer_table p;
  int tag;
  assert_int_equal(peer_table_init(&p), ERR_OK);
  peer *a = peer_table_of_routing(&p, &tag, "a", 1, ""), *b = peer_table_of_routing(&p, &tag, "b", 1, "");
  assert_null(peer_table_of_connection(&p, 0)); /* theirs are not known yet */
  a->connection = 12;
  b->connection = 13;
  assert_ptr_equal(peer_table_of_connection(&p, 12), a);
  assert_ptr_equal(peer_table_of_connection(&p, 13), b);
  assert_null(peer_table_of_connection(&p, 14));
  peer_table_remove(&p, a);
  assert_null(peer_table_of_connection(&p, 12));
  peer_table_fini(&p);
}

static void test_pinned_peers_are_limited(void **state) {
  (void)state;
  peer_table p;
  int tag;
  peer *last = NULL;
  assert_int_equal(peer_table_init(&p), ERR_OK);
  for (int i = 0; i < PEER_TABLE_PINNED_MAX; i++) assert_non_null(last = peer_table_pin(&p, &tag));
  assert_null(peer_table_pin(&p, &tag));
  peer_table_remove(&p, last);
  assert_non_null(peer_table_pin(&p, &tag));
  peer_table_fini(&p);
}

/* Routing ids that share their first bytes or a bucket are different peers; removal leaves the chain whole.
 */
static void test_removal_leaves_the_chains_whole(void **state) {
  (void)state;
  peer_table p;
  int tag;
  assert_int_equal(peer_table_init(&p), ERR_OK);
  char name[16];
  for (int i = 0; i < PEER_TABLE_MAX; i++) {
    int size = snprintf(name, sizeof name, "p%d", i);
    peer_table_of_routing(&p, &tag, name, (size_t)size, "");
  }
  for (int i = 0; i < PEER_TABLE_MAX; i += 2) {
    int size = snprintf(name, sizeof name, "p%d", i);
    peer_table_remove(&p, peer_table_of_routing(&p, &tag, name, (size_t)size, ""));
  }
  for (int i = 0; i < PEER_TABLE_MAX / 2; i++) { /* into the slots that are free now */
    int size = snprintf(name, sizeof name, "q%d", i);
    peer_table_of_routing(&p, &tag, name, (size_t)size, "");
  }
  for (int i = 1; i < PEER_TABLE_MAX; i += 2) {
    int size = snprintf(name, sizeof name, "p%d", i);
    uint64_t serial = p.serial;
    peer_table_of_routing(&p, &tag, name, (size_t)size, "");
    assert_int_equal(p.serial, serial); /* found, not made */
  }
  peer_table_fini(&p);
}

/* Whoever comes with a routing id and another key is somebody else, and the one who had it is gone. */
static void test_a_routing_id_with_another_key_is_another_peer(void **state) {
  (void)state;
  peer_table p;
  int tag;
  assert_int_equal(peer_table_init(&p), ERR_OK);
  peer *owner = peer_table_of_routing(&p, &tag, "id", 2, "8a");
  owner->greeted = true;
  peer_id id = owner->id;
  assert_int_equal(peer_table_of_routing(&p, &tag, "id", 2, "8a")->id, id);
  peer *other = peer_table_of_routing(&p, &tag, "id", 2, "8b");
  peer_id other_id = other->id;
  assert_true(other_id != id && !other->greeted);
  assert_string_equal(other->user, "8b");
  assert_null(peer_table_find(&p, id));
  assert_true(peer_table_of_routing(&p, &tag, "id", 2, "8a")->id != id);
  assert_null(peer_table_find(&p, other_id));
  peer_table_fini(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_peer_that_was_silent_longest_is_forgotten),
      cmocka_unit_test(test_strangers_are_forgotten_first),
      cmocka_unit_test(test_a_peer_is_found_by_its_connection),
      cmocka_unit_test(test_pinned_peers_are_limited),
      cmocka_unit_test(test_removal_leaves_the_chains_whole),
      cmocka_unit_test(test_a_routing_id_with_another_key_is_another_peer),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
