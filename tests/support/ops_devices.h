/* ops_devices.h - for tests that hold every device against the C reference: the devices that this machine
 * has, and the one that TANDEM_TEST_DEVICE names; matrices in a file's form; forwards of a few ops.
 *
 * Nothing here looks into a device: what goes in and comes out goes through kernels/device.h. */
#pragma once

#include "kernels/devices/devices.h"
#include "tests/support/quant_blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define SUPPORT_F32_EPS   0x1p-24
#define SUPPORT_ROUNDINGS 16 /* of a long sum: they cancel, the worst case does not happen */
#define SUPPORT_THREADS   3
#define SUPPORT_DEVICES   32

/* 24 random bits. */
uint32_t random_bits(void);

/* In [-2, 2). */
float random_float(void);

float *random_floats(size_t n);

void assert_near(double got, double expected, double bound, const char *what);

/* --- the devices under test, of each class of bits; [0] is the reference, in one thread --- */

extern device *devices[OPS_MATH_COUNT][SUPPORT_DEVICES];
extern int32_t device_count;

void open_device(const char *name, int32_t threads);

int open_devices(void **state);

int close_devices(void **state);

/* What a device computed is what the reference did. */
void assert_same(const device *d, const void *got, const void *reference, size_t bytes, const char *what);

/* --- memory --- */

/* Through windows, as large as the device gives them. */
device_memory *upload(device *d, const void *from, size_t bytes);

device_vector upload_floats(device *d, const float *x, size_t n);

void drop_vector(device *d, device_vector v);

device_act *act_of(device *d, int32_t rows, int32_t columns, bool input, const float *from);

float *read_act(device *d, const device_act *a, int32_t rows, int32_t columns);

/* --- a weight in its file form, with the values that the form stands for --- */

typedef struct matrix {
  ops_type type;
  int32_t rows, columns;
  uint8_t *file;
  double *values;
} matrix;

/* The values of a quantised type, from its file's form. */
void set_values(matrix *m);

matrix make_matrix(ops_type type, int32_t rows, int32_t columns);

void free_matrix(matrix *m);

/* Packed in two pieces. */
device_weight pack_matrix(device *d, const matrix *m);

void drop_weight(device *d, device_weight w);

/* --- forwards --- */

#define SUPPORT_ROWS 512

/* A forward of `rows` rows that have nothing but their number. */
void begin_rows(device *d, int32_t rows);

void end_rows(device *d);

/* y [rows][m->rows] of one matrix. */
float *linear_of(device *d, const matrix *m, const device_act *x, int32_t rows);

/* The int8 form of x as it shows: columns times q8 * scale, from a matrix of ones on the diagonal. */
float *quantised_of(device *d, const device_act *x, int32_t rows, int32_t columns);
