#include "kernels/cpu/tensor_step.h"
#include "kernels/cuda/shim.h"

#ifndef __CUDACC__

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace shim {

#define STACK_BYTES ((size_t)256 << 10)
#define JUMP_WORDS  5    /* of __builtin_setjmp */
#define POISON      0xff /* a NaN, -1 */
#define UNCHECKED   __attribute__((noinline, no_sanitize("address", "thread")))

[[noreturn]] static void fail(const char *what) {
  fprintf(stderr, "shim: %s\n", what);
  abort();
}

void must_have_waited() {
  if (!waited[thread()])
    fail("a thread of a kernel that begins early has not waited for the previous kernel");
}

/* --- fibers: stacks that take turns --- */

struct fiber {
  void *jump[JUMP_WORDS];
  void *stack = nullptr; /* NULL: the stack of the thread that launches */
  bool begun = false;
  int thread = -1; /* that it carries, or -1 */
  /* Of the sanitizers: ASan's fake stack, and where a thread's own stack lies; TSan's fiber. */
  void *fake = nullptr, *tsan = nullptr;
  const void *bottom = nullptr;
  size_t bytes = 0;

  ~fiber() {
    if (!stack) return;
#if defined(__SANITIZE_THREAD__)
    if (tsan) __tsan_destroy_fiber(tsan);
#endif
    munmap(stack, STACK_BYTES);
  }
};

static void take_stack(fiber *f) {
  f->stack =
      mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (f->stack == MAP_FAILED) fail("no memory for a thread's stack");
  f->bottom = f->stack;
  f->bytes = STACK_BYTES;
#if defined(__SANITIZE_THREAD__)
  f->tsan = __tsan_create_fiber(0);
#endif
}

/* What the sanitizers must know: before a switch, and at once after it. */
static inline void announce(fiber *from, fiber *to) {
  (void)from, (void)to;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->bytes);
#elif defined(__SANITIZE_THREAD__)
  if (!from->stack) from->tsan = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to->tsan, 0);
#endif
}

static inline void arrive(fiber *to, fiber *launcher) {
  (void)to, (void)launcher;
#if defined(__SANITIZE_ADDRESS__)
  const void *bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(to->fake, &bottom, &bytes);
  if (to->stack && !launcher->bottom) launcher->bottom = bottom, launcher->bytes = bytes;
#endif
}

/* swapcontext would make two system calls for each switch. */
[[noreturn]] UNCHECKED static void jump(fiber *to) {
  __builtin_longjmp(to->jump, 1);
}

[[noreturn]] UNCHECKED static void begin(fiber *to, void (*body)()) {
  ucontext_t c;
  getcontext(&c);
  c.uc_stack.ss_sp = to->stack;
  c.uc_stack.ss_size = STACK_BYTES;
  c.uc_link = nullptr;
  makecontext(&c, body, 0);
  to->begun = true;
  setcontext(&c);
  fail("a fiber did not begin");
}

UNCHECKED static void switch_fiber(fiber *from, fiber *to, fiber *launcher, void (*body)()) {
  announce(from, to);
  if (__builtin_setjmp(from->jump) == 0) {
    if (!to->begun) begin(to, body);
    jump(to);
  }
  arrive(from, launcher);
}

/* --- a block --- */

struct barrier {
  int arrived = 0;
  unsigned passed = 0;
};

/* Copies to shared memory that a thread has not waited for yet. */
struct copy {
  void *to;
  const void *from;
  size_t bytes;
  int batch;
};

struct copies {
  std::vector<copy> list;
  int batch = 0; /* that copies belong to now */
};

/* One that is done when the phase of a barrier in shared memory ends. */
struct promised_copy {
  const uint32_t *barrier;
  copy what;
};

struct warp {
  barrier all;
  alignas(16) unsigned char given[2][WARP * EXCHANGE_MAX];
};

struct runner {
  std::vector<std::unique_ptr<fiber>> fibers;
  std::vector<fiber *> idle;    /* those that carry no thread, but for the one that runs */
  std::vector<fiber *> waiting; /* [thread] that carries it while it waits, or NULL */
  std::vector<fiber *> ready;   /* whose threads need not wait any more; the last one is the next to run */
  fiber launcher;
  fiber *running = nullptr;
  const std::function<void()> *thread = nullptr;
  int count = 0, begun = 0; /* threads of the block */
  bool backwards = false;
  barrier all;
  std::vector<warp> warps;
  std::vector<copies> copied;              /* [thread] */
  std::vector<const uint32_t *> waits_for; /* [thread]: a barrier in shared memory, or NULL */
  std::vector<promised_copy> promised;
};

static thread_local runner run;
static thread_local unsigned launches;

static void stand_at(int thread) {
  unsigned at = (unsigned)thread;
  const dim3 &n = here.block;
  here.thread_at = dim3(at % n.x, at / n.x % n.y, at / n.x / n.y);
}

static void carry_on();

static void resume(fiber *to) {
  fiber *from = run.running;
  run.running = to;
  switch_fiber(from, to, &run.launcher, carry_on);
}

static fiber *idle_fiber() {
  if (run.idle.empty()) {
    run.fibers.emplace_back(new fiber);
    take_stack(run.fibers.back().get());
    return run.fibers.back().get();
  }
  fiber *f = run.idle.back();
  run.idle.pop_back();
  return f;
}

/* Number `order` of `count`, from the end where the block runs backwards. */
static int in_order(int order, int count) {
  return run.backwards ? count - 1 - order : order;
}

static void run_thread() {
  fiber *self = run.running;
  self->thread = in_order(run.begun++, run.count);
  stand_at(self->thread);
  (*run.thread)();
  self->thread = -1;
}

static fiber *take_ready() {
  fiber *f = run.ready.back();
  run.ready.pop_back();
  return f;
}

/* A fiber runs threads, until one of them has to wait or others can go on. */
static void carry_on() {
  arrive(run.running, &run.launcher);
  for (;;) {
    if (run.ready.empty() && run.begun < run.count) {
      run_thread();
      continue;
    }
    run.idle.push_back(run.running);
    resume(run.ready.empty() ? &run.launcher : take_ready());
  }
}

/* Lets others run until the barrier has been passed. */
static void wait() {
  fiber *self = run.running;
  run.waiting[(size_t)self->thread] = self;
  if (run.ready.empty() && run.begun == run.count)
    fail("threads wait for others of their block or warp that never come");
  resume(run.ready.empty() ? idle_fiber() : take_ready());
  stand_at(self->thread);
}

/* Those of a warp that wait can go on, before everyone else. */
static void release_warp(int warp) {
  const int first = warp * WARP, lanes = run.count - first < WARP ? run.count - first : WARP;
  for (int i = lanes - 1; i >= 0; i--) {
    fiber **waiting = &run.waiting[(size_t)(first + in_order(i, lanes))];
    if (*waiting) run.ready.push_back(*waiting);
    *waiting = nullptr;
  }
}

/* True: the thread came last, and all others of its barrier can go on. */
static bool passes(barrier *b, int count) {
  if (++b->arrived < count) return false;
  b->arrived = 0;
  b->passed++;
  return true;
}

/* A warp runs as far as its barriers let it before another one does, the last one to come first. So what it
 * reads too early where a barrier is missing is not written yet, and what it overwrites too early is not read
 * yet. */
void block_barrier() {
  const int warps = (run.count + WARP - 1) / WARP, own = run.running->thread / WARP;
  if (!passes(&run.all, run.count)) return wait();
  for (int i = warps - 1; i >= 0; i--) release_warp((own + (run.backwards ? warps - i : i)) % warps);
}

const unsigned char *warp_exchange(const void *mine, size_t bytes) {
  if (run.count % WARP != 0) fail("a block that uses a warp's intrinsics has no multiple of 32 threads");
  warp *w = &run.warps[(size_t)(run.running->thread / WARP)];
  unsigned char *given = w->given[w->all.passed % 2];
  memcpy(given + (size_t)lane() * EXCHANGE_MAX, mine, bytes);
  if (passes(&w->all, WARP))
    release_warp(run.running->thread / WARP);
  else
    wait();
  return given;
}

/* --- what a GPU does beside the threads --- */

void copy_later(void *to, const void *from, size_t bytes) {
  copies *c = &run.copied[(size_t)run.running->thread];
  memset(to, POISON, bytes); /* nobody may count on the old bytes any more */
  c->list.push_back({to, from, bytes, c->batch});
}

void copies_end() {
  run.copied[(size_t)run.running->thread].batch++;
}

void copies_wait(int left) {
  copies *c = &run.copied[(size_t)run.running->thread];
  size_t kept = 0;
  for (const copy &one : c->list) {
    if (one.batch < c->batch - left)
      memcpy(one.to, one.from, one.bytes);
    else
      c->list[kept++] = one;
  }
  c->list.resize(kept);
}

/* words of a barrier: arrivals that are wanted and those that are left, 16 bits each; phases that have ended
 */
#define HALF_WORD 16

void signal_init(uint32_t words[2], int arrivals) {
  words[0] = (uint32_t)arrivals << HALF_WORD | (uint32_t)arrivals;
  words[1] = 0;
}

static void end_phase(uint32_t words[2]) {
  words[0] |= words[0] >> HALF_WORD;
  words[1]++;
  size_t kept = 0;
  for (const promised_copy &one : run.promised) {
    if (one.barrier == words)
      memcpy(one.what.to, one.what.from, one.what.bytes);
    else
      run.promised[kept++] = one;
  }
  run.promised.resize(kept);
  for (int i = run.count - 1; i >= 0; i--) {
    const size_t thread = (size_t)in_order(i, run.count);
    if (run.waits_for[thread] != words) continue;
    run.ready.push_back(run.waiting[thread]);
    run.waiting[thread] = nullptr;
    run.waits_for[thread] = nullptr;
  }
}

void signal_arrive(uint32_t words[2]) {
  const uint32_t left = words[0] & ((1u << HALF_WORD) - 1);
  if (words[0] == UINT32_MAX) fail("an arrival at a barrier that nobody made"); /* POISON */
  words[0]--;
  if (left == 1) end_phase(words);
}

void signal_wait(uint32_t words[2], uint32_t phase) {
  if (words[0] == UINT32_MAX) fail("a thread waits at a barrier that nobody made");
  if (words[1] > phase + 1) fail("a thread waits for a phase of a barrier after the next one has ended");
  if (words[1] == phase + 1) return;
  if (words[1] < phase) fail("a thread waits for a phase of a barrier that has not begun");
  run.waits_for[(size_t)run.running->thread] = words;
  wait();
}

void signal_arrive_after_copies(uint32_t words[2]) {
  copies *c = &run.copied[(size_t)run.running->thread];
  for (const copy &one : c->list) run.promised.push_back({words, one});
  c->list.clear();
  signal_arrive(words);
}

#define BYTES_OF_A 16 /* of a lane; then come its b */

static int byte_of(const unsigned char *words, int word, int i, bool is_signed) {
  unsigned char byte = words[word * 4 + i];
  return is_signed ? (int8_t)byte : byte;
}

/* Row `row` of a times column `column` of b: lane 4 g + j gave words j (and j + 4) of rows g and g + 8, and
 * of column g. */
static int32_t dot_bytes(const unsigned char *all, int row, int column, int words, bool is_signed) {
  int32_t sum = 0;
  for (int j = 0; j < 4; j++) {
    const unsigned char *a = all + (size_t)(row % 8 * 4 + j) * EXCHANGE_MAX;
    const unsigned char *b = all + (size_t)(column * 4 + j) * EXCHANGE_MAX + BYTES_OF_A;
    for (int k = 0; k < words * 4; k++)
      sum += byte_of(a, k / 4 * 2 + row / 8, k % 4, is_signed) * byte_of(b, k / 4, k % 4, true);
  }
  return sum;
}

void multiply_bytes(int32_t c[4], const uint32_t *a, const uint32_t *b, int words, bool is_signed) {
  unsigned char mine[BYTES_OF_A + 8];
  memcpy(mine, a, (size_t)words * 8);
  memcpy(mine + BYTES_OF_A, b, (size_t)words * 4);
  const unsigned char *all = warp_exchange(mine, sizeof mine);
  for (int i = 0; i < 4; i++)
    c[i] += dot_bytes(all, lane() / 4 + i / 2 * 8, lane() % 4 * 2 + i % 2, words, is_signed);
}

/* The 16 inputs of a row, as lane 4 g + j gave words j and j + 4 of it, `apart` words apart. */
static void gather_inputs(const unsigned char *all, int g, size_t at, size_t apart,
                          uint16_t inputs[TENSOR_STEP]) {
  for (int word = 0; word < TENSOR_STEP / 2; word++)
    memcpy(inputs + 2 * word,
           all + (size_t)(g * 4 + word % 4) * EXCHANGE_MAX + at + (size_t)(word / 4) * apart * 4, 4);
}

void multiply_bf16(float c[4], const uint32_t a[4], const uint32_t b[2]) {
  unsigned char mine[BYTES_OF_A + 8];
  memcpy(mine, a, BYTES_OF_A);
  memcpy(mine + BYTES_OF_A, b, 8);
  const unsigned char *all = warp_exchange(mine, sizeof mine);
  for (int i = 0; i < 4; i++) {
    uint16_t w[TENSOR_STEP], x[TENSOR_STEP];
    gather_inputs(all, lane() / 4, (size_t)(i / 2) * 4, 2, w);
    gather_inputs(all, lane() % 4 * 2 + i % 2, BYTES_OF_A, 1, x);
    c[i] = tensor_step(c[i], w, 1, x);
  }
}

void load_turned(uint32_t to[4], const void *row) {
  const unsigned char *all = warp_exchange(row, 16);
  for (int i = 0; i < 4; i++) {
    uint16_t pair[2];
    for (int k = 0; k < 2; k++)
      memcpy(&pair[k], all + (size_t)(8 * i + lane() % 4 * 2 + k) * EXCHANGE_MAX + (size_t)(lane() / 4) * 2,
             2);
    to[i] = pair[0] | (uint32_t)pair[1] << 16;
  }
}

void load_rows(uint32_t to[4], const void *row) {
  const unsigned char *all = warp_exchange(row, 16);
  for (int i = 0; i < 4; i++)
    memcpy(&to[i], all + (size_t)(8 * i + lane() / 4) * EXCHANGE_MAX + (size_t)(lane() % 4) * 4, 4);
}

static void run_block() {
  run.copied.assign((size_t)run.count, copies{});
  run.waiting.assign((size_t)run.count, nullptr);
  run.waits_for.assign((size_t)run.count, nullptr);
  run.promised.clear();
  run.begun = 0;
  resume(idle_fiber());
  for (const fiber *f : run.waiting)
    if (f) fail("a block ended while threads waited");
}

static void run_grid(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &thread) {
  std::unique_ptr<unsigned char, void (*)(void *)> shared(
      (unsigned char *)aligned_alloc(16, (shared_bytes + 15) / 16 * 16 + 16), free);
  here = {grid, block, {}, {}, shared.get()};
  run.thread = &thread;
  run.count = (int)(block.x * block.y * block.z);
  run.warps.resize((size_t)(run.count + WARP - 1) / WARP);
  run.running = &run.launcher;
  run.launcher.begun = true;
  launches++;
  for (unsigned i = 0; i < grid.x * grid.y * grid.z; i++) {
    memset(shared.get(), POISON, shared_bytes);
    here.block_at = dim3(i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y);
    run.backwards = (launches + i) % 2 != 0;
    run_block();
  }
  run.thread = nullptr;
}

#define BLOCK_MAX  1024
#define GRID_Y_MAX 65535

void launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes, std::function<void()> thread) {
  if (block.x * block.y * block.z > BLOCK_MAX || block.x * block.y * block.z == 0)
    fail("a block of a wrong size");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > GRID_Y_MAX || grid.z > GRID_Y_MAX)
    fail("a grid of a wrong size");
  if (shared_bytes > (size_t)shared_max) fail("more shared memory than a block can have");
  enqueue(stream, [=] { run_grid(grid, block, shared_bytes, thread); });
}

} // namespace shim

#endif
