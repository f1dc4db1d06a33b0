/* terminal.h - what may be written to a terminal besides plain lines. */
#pragma once

#include <stdbool.h>

/* Is there a terminal at `fd` that takes escape sequences: TERM is set, and is not "dumb"? */
bool terminal_is_smart(int fd);
/* And does the user want them? Whoever sets NO_COLOR gets plain lines: no colours, and no line that is
 * written over. */
bool terminal_takes_colours(int fd);
