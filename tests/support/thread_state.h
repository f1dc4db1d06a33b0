/* thread_state.h - what the system says of this process's threads. */
#pragma once

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Is it asleep, and not computing or waiting for a processor? */
bool thread_sleeps(int thread);

/* Do all threads but the calling one sleep? */
bool other_threads_sleep(void);
