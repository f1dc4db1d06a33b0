/* limits.h - what this machine can do at best, measured: the walls that a step of a model runs into. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LIMITS_MIB 512 /* read in a pass: well above any cache */

/* seconds[passes] of reading *bytes of memory that is in no cache, by so many threads together. *lanes: the
 * loads used, static. False: no memory or threads. */
bool limits_read(int threads, int passes, long mib, double *seconds, size_t *bytes, const char **lanes);

typedef enum { LIMITS_BYTES, LIMITS_FLOATS } limits_numbers;

/* seconds[passes] of *macs multiply-adds in registers, by so many threads together, with the best instruction
 * that the processor has for them. Of floats: vfmadd of 512 or 256 bits. Of bytes: vpdpbusd of 512 bits, of
 * 256 bits (AVX-VNNI), or vpmaddubsw with an addition of 16-bit sums, which a kernel has to widen besides.
 * False: no threads. */
bool limits_multiply(limits_numbers numbers, int threads, int passes, double *seconds, uint64_t *macs,
                     const char **instruction);

/* The best of some passes: bytes and multiply-adds per second; 0: no memory or threads. */
double limits_read_rate(int threads, int passes);
double limits_multiply_rate(limits_numbers numbers, int threads, int passes, const char **instruction);
