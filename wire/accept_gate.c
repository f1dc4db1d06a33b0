/* Without sys/socket.h: it declares accept and accept4 with a type of which no function can be defined. */
#include "wire/accept_gate.h"
#include "common/base/program.h"
#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static accept_gate *gates;

void accept_gate_add(accept_gate *g, int listener, clock_source clock) {
  *g = (accept_gate){.listener = listener, .clock = clock};
  pthread_mutex_lock(&lock);
  g->next = gates;
  gates = g;
  pthread_mutex_unlock(&lock);
}

void accept_gate_remove(accept_gate *g) {
  pthread_mutex_lock(&lock);
  for (accept_gate **at = &gates; *at; at = &(*at)->next)
    if (*at == g) {
      *at = g->next;
      break;
    }
  pthread_mutex_unlock(&lock);
}

uint64_t accept_gate_look(accept_gate *g) {
  pthread_mutex_lock(&lock);
  uint64_t closed = g->let_in.left_out;
  g->let_in = (log_limit){0};
  pthread_mutex_unlock(&lock);
  return closed;
}

typedef enum { PASSAGE_FREE, PASSAGE_OPEN, PASSAGE_SHUT } passage;

/* Counts a connection that came in at this listener; FREE: it has no gate. */
static passage pass(int listener) {
  passage found = PASSAGE_FREE;
  pthread_mutex_lock(&lock);
  for (accept_gate *g = gates; g && found == PASSAGE_FREE; g = g->next)
    if (g->listener == listener)
      found = log_limit_takes(&g->let_in, g->clock(), ACCEPT_GATE_MAX, ACCEPT_GATE_EVERY_US) ? PASSAGE_OPEN
                                                                                             : PASSAGE_SHUT;
  pthread_mutex_unlock(&lock);
  return found;
}

/* --- in place of libc's, in the whole program --- */

#define EXPORTED __attribute__((visibility("default")))

int accept4(int listener, void *address, unsigned *size, int flags);
int accept(int listener, void *address, unsigned *size);

/* To ZeroMQ, ECONNABORTED is a connection that has gone already. Most other errors end the program; so do
 * those of a process without a free descriptor, where the listener is an ipc one. The last descriptors are
 * left to the ledger, the workers and ZeroMQ itself, which ends the program where it gets none. Where the
 * system has nothing left, the connection stays and is signalled at once again: hence the pause. */
EXPORTED int accept4(int listener, void *address, unsigned *size, int flags) {
  int fd = (int)syscall(SYS_accept4, listener, address, size, flags);
  bool exhausted = fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM);
  bool shut = fd >= 0 && pass(listener) == PASSAGE_SHUT;
  shut = shut || fd >= program_files_max() - ACCEPT_GATE_RESERVE;
  if (exhausted) usleep(ACCEPT_GATE_PAUSE_US);
  if (shut) close(fd);
  if (!shut && !exhausted) return fd;
  errno = ECONNABORTED;
  return -1;
}

EXPORTED int accept(int listener, void *address, unsigned *size) {
  return accept4(listener, address, size, 0);
}
