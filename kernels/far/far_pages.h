/* far_pages.h - memory for the host that cannot be touched any more once it has been withdrawn. */
#pragma once

#include <stddef.h>

#define FAR_PAGES_WITHDRAWN                                                                                  \
  64 /* that stay reserved, so that their addresses are not given out again soon                             \
      */

typedef struct far_pages {
  struct {
    void *at;
    size_t bytes;
  } withdrawn[FAR_PAGES_WITHDRAWN];
  size_t next;
} far_pages;

/* Filled with FAR_PAGES_POISON; it ends less than 64 bytes before a page that cannot be touched. NULL: no
 * memory. */
#define FAR_PAGES_POISON 0xa5
void *far_pages_take(size_t bytes);
/* What far_pages_take(bytes) gave cannot be read or written from now on; NULL is allowed. */
void far_pages_withdraw(far_pages *p, void *at, size_t bytes);
void far_pages_close(far_pages *p);
