/* count_malloc.h - counts this program's calls of the allocator, by any thread. Under the sanitizers, which
 * have an allocator of their own, COUNT_MALLOC is 0 and nothing is counted. */
#pragma once

#include <features.h> /* __GLIBC__ */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define COUNT_MALLOC 0
#else
#define COUNT_MALLOC 1
#endif

/* So far. */
unsigned long malloc_calls(void);
