#include "kernels/cuda/shim.h"

#ifndef __CUDACC__

#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#define POISON       0xff
#define DEVICE_BYTES ((size_t)4 << 30)
#define ALIGNMENT    256
#define VERSION      13000

typedef std::function<void()> shim_step;

struct shim_graph {
  std::vector<shim_step> steps;
};

struct shim_stream {
  std::vector<shim_step> queue;
  shim_graph *captured = nullptr;
};

struct shim_event {
  cudaStream_t stream = nullptr;
  size_t recorded = 0, reached = 0; /* the latest that was queued, and that ran */
};

namespace {

/* Of the whole process, as the machine is. The default stream may be used by several threads, so one lock is
 * around everything, also around the kernels. */
struct machine {
  int devices = 1, driver = VERSION, major = 9, minor = 0;
  size_t limit = DEVICE_BYTES, limit_pinned = DEVICE_BYTES, taken = 0;
  cudaError_t last = cudaSuccess, fault = cudaSuccess;
  std::map<void *, size_t> device, pinned;
  std::set<cudaStream_t> streams;
};

std::recursive_mutex lock;
#define GUARD std::lock_guard<std::recursive_mutex> guard(lock)

machine &now() {
  static machine m;
  return m;
}

cudaError_t result(cudaError_t code) {
  if (now().fault != cudaSuccess) code = now().fault;
  if (code != cudaSuccess && code != cudaErrorNotReady) now().last = code;
  return code;
}

void run(cudaStream_t stream) {
  std::vector<shim_step> steps;
  steps.swap(stream->queue);
  for (shim_step &step : steps)
    if (now().fault == cudaSuccess) step();
}

void run_all() {
  for (cudaStream_t stream : now().streams) run(stream);
}

cudaError_t take(std::map<void *, size_t> &area, void **p, size_t bytes) {
  if (posix_memalign(p, ALIGNMENT, bytes ? bytes : 1) != 0) return *p = nullptr, cudaErrorMemoryAllocation;
  memset(*p, POISON, bytes);
  area[*p] = bytes;
  now().taken += bytes;
  return cudaSuccess;
}

/* What is queued may use it, and is done first. */
void give(std::map<void *, size_t> &area, void *p) {
  run_all();
  auto found = area.find(p);
  if (found == area.end()) return;
  now().taken -= found->second;
  area.erase(found);
  free(p);
}

size_t left_of(const std::map<void *, size_t> &area, size_t limit) {
  size_t used = 0;
  for (auto &m : area) used += m.second;
  return used < limit ? limit - used : 0;
}

size_t left() {
  return left_of(now().device, now().limit);
}

} // namespace

void shim::enqueue(cudaStream_t stream, std::function<void()> step) {
  GUARD;
  if (now().fault != cudaSuccess) return;
  if (!stream) return run_all(), step();
  (stream->captured ? stream->captured->steps : stream->queue).push_back(std::move(step));
}

/* --- the device --- */

cudaError_t cudaDriverGetVersion(int *version) {
  GUARD;
  *version = now().driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count) {
  GUARD;
  *count = 0;
  if (now().driver < VERSION) return result(cudaErrorInsufficientDriver);
  if (now().devices == 0) return result(cudaErrorNoDevice);
  *count = now().devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  GUARD;
  return result(device >= 0 && device < now().devices ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaGetDevice(int *device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
  GUARD;
  if (device < 0 || device >= now().devices) return result(cudaErrorInvalidDevice);
  *p = {"emulated", now().limit, now().major, now().minor, 4};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
  GUARD;
  if (device < 0 || device >= now().devices) return result(cudaErrorInvalidDevice);
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? now().major : now().minor;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  GUARD;
  *total = now().limit;
  *free_bytes = left();
  return result(cudaSuccess);
}
cudaError_t cudaDeviceSynchronize(void) {
  GUARD;
  run_all();
  return result(cudaSuccess);
}
cudaError_t cudaPeekAtLastError(void) {
  GUARD;
  return now().fault != cudaSuccess ? now().fault : now().last;
}
cudaError_t cudaGetLastError(void) {
  GUARD;
  cudaError_t last = cudaPeekAtLastError();
  now().last = cudaSuccess;
  return last;
}
const char *cudaGetErrorName(cudaError_t code) {
  return code == cudaSuccess ? "cudaSuccess" : "cudaError";
}
const char *cudaGetErrorString(cudaError_t code) {
  return code == cudaSuccess                 ? "no error"
         : code == cudaErrorMemoryAllocation ? "out of memory"
                                             : "an error of the emulated device";
}

/* --- memory --- */

cudaError_t cudaMalloc(void **p, size_t bytes) {
  GUARD;
  *p = nullptr;
  if (now().fault != cudaSuccess || bytes > left()) return result(cudaErrorMemoryAllocation);
  return result(take(now().device, p, bytes));
}
cudaError_t cudaFree(void *p) {
  GUARD;
  if (p) give(now().device, p);
  return result(cudaSuccess);
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
  GUARD;
  *p = nullptr;
  if (bytes > left_of(now().pinned, now().limit_pinned)) return result(cudaErrorMemoryAllocation);
  return result(now().fault != cudaSuccess ? now().fault : take(now().pinned, p, bytes));
}
cudaError_t cudaHostGetDevicePointer(void **p, void *host, unsigned) {
  GUARD;
  *p = now().pinned.count(host) ? host : nullptr;
  return result(*p ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void **p, size_t bytes) {
  return cudaHostAlloc(p, bytes, cudaHostAllocDefault);
}
cudaError_t cudaFreeHost(void *p) {
  GUARD;
  if (p) give(now().pinned, p);
  return result(cudaSuccess);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  GUARD;
  if (bytes > 0) shim::enqueue(stream, [=] { memcpy(to, from, bytes); });
  return result(cudaSuccess);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  GUARD;
  if (bytes > 0) shim::enqueue(stream, [=] { memset(to, value, bytes); });
  return result(cudaSuccess);
}
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

/* --- streams --- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
  GUARD;
  *stream = new shim_stream;
  now().streams.insert(*stream);
  return result(cudaSuccess);
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  GUARD;
  run(stream);
  now().streams.erase(stream);
  delete stream;
  if (now().streams.empty()) now().fault = now().last = cudaSuccess;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  GUARD;
  if (!stream) return cudaDeviceSynchronize();
  if (stream->captured) return result(cudaErrorInvalidValue);
  run(stream);
  return result(cudaSuccess);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return cudaStreamSynchronize(stream);
}

/* --- events --- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
  *event = new shim_event;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  cudaDeviceSynchronize(); /* what is queued may know it */
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  GUARD;
  size_t mark = ++event->recorded;
  event->stream = stream;
  shim::enqueue(stream, [=] { event->reached = mark; });
  return result(cudaSuccess);
}
/* Who asks first is told to ask again, as a GPU would. */
cudaError_t cudaEventQuery(cudaEvent_t event) {
  GUARD;
  if (event->reached == event->recorded) return result(cudaSuccess);
  run(event->stream);
  return result(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  GUARD;
  if (event->reached != event->recorded) run(event->stream);
  return result(cudaSuccess);
}
/* What runs when somebody waits for it took no time; so nobody sleeps until it is nearly done. */
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0.001f;
  return cudaSuccess;
}

/* --- graphs --- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  GUARD;
  if (!stream || stream->captured) return result(cudaErrorInvalidValue);
  stream->captured = new shim_graph;
  return result(cudaSuccess);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  GUARD;
  if (!stream || !stream->captured) return result(cudaErrorInvalidValue);
  *graph = stream->captured;
  stream->captured = nullptr;
  return result(cudaSuccess);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long) {
  *out = new shim_graph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  GUARD;
  for (shim_step &step : graph->steps) shim::enqueue(stream, step);
  return result(cudaSuccess);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}

/* --- for tests --- */

void shim_runtime_machine(int devices, int driver, int major, int minor) {
  GUARD;
  now().devices = devices;
  now().driver = driver;
  now().major = major;
  now().minor = minor;
}
void shim_runtime_limit(size_t bytes) {
  GUARD;
  now().limit = bytes;
}
void shim_runtime_limit_pinned(size_t bytes) {
  GUARD;
  now().limit_pinned = bytes;
}
void shim_runtime_fault(void) {
  GUARD;
  now().fault = cudaErrorIllegalAddress;
}
size_t shim_runtime_taken(void) {
  GUARD;
  return now().taken;
}

#endif
