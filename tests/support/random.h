/* random.h - the random numbers of all tests: from one seed the same ones on every machine. splitmix64
 * (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014): any seed will do, 0 too,
 * but seeds that are a multiple of 0x9e3779b97f4a7c15 apart give the same numbers, some calls later. */
#pragma once

#include "common/base/portable.h"
#include <stdint.h>

PORTABLE_C_BEGIN

/* 64 random bits. */
uint64_t random_next(uint64_t *state);

/* The same, for those that are given a source of random numbers. */
uint64_t random_source(void *state);

/* A number of 0 to below - 1. */
uint32_t random_below(uint64_t *state, uint32_t below);

PORTABLE_C_END
