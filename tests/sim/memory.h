/* memory.h - the allocator as the machines see it: it fails when a seed says so. The linker hands every
 * malloc, calloc, realloc, aligned_alloc and free of this program to memory.c (-Wl,--wrap). Only what a
 * machine asks for is counted and refused, between memory_enter and memory_leave; one thread, which runs one
 * world at a time, does not see the others. */
#pragma once

#include "wire/machine.h"

/* The k-th allocation from now on fails, and the next ones of the same program: `count` in all. k 0: none. */
void memory_plan(uint64_t k, uint64_t count);
void memory_hold(bool held);   /* until false, nothing is refused or counted against the plan */
uint64_t memory_refused(void); /* allocations of this thread so far */
uint64_t memory_asked(void);   /* allocations by machines of this thread so far, refused ones too */
int64_t memory_live(void);     /* blocks that this thread has taken and not freed, whoever asked for them */

void memory_enter(int node); /* a machine of this program is called */
void memory_leave(void);

typedef struct memory_guard { /* a machine, whose steps are between enter and leave */
  machine inner;
  int node;
} memory_guard;

/* *g lasts as long as the machine is used. */
machine memory_guarded(memory_guard *g, int node, machine inner);
