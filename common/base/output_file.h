/* output_file.h - no program writes over a file that it reads, under whatever name: a link, a hard link,
 * /proc/self/fd.
 *
 * What a command reads is named first, by who parses its flags and by who opens it; everything that it writes
 * where a user says is opened here. One process, one list; any thread. */
#pragma once

#include "common/base/err.h"
#include <stdio.h>

/* This file, or each file in this folder but GGUF files, is read by this command, here or in a program that
 * it starts. What is not there yet is spared by its name. NULL and "-" are allowed. */
void output_file_spare(const char *path);

/* May this be written over, or another file take its name? ERR_ARG: it is read, and the sentence says so. */
int output_file_check(const char *path, err *e);
/* The same for what somebody has opened for us: stdout. */
int output_file_check_fd(int fd, const char *name, err *e);

/* Opened for writing, empty, or after what is there ("a"); made with the rights of the umask. NULL: ERR_ARG
 * as above, and nothing is changed; ERR_IO. */
FILE *output_file_open(const char *path, const char *mode, err *e);
int output_file_open_fd(const char *path, err *e); /* >= 0, or -1 */
