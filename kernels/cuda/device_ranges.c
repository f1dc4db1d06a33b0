/* device_ranges.c - NVTX ranges: names for what the host does, which a profiler shows. Without a profiler,
 * and without the header of NVTX, they do nothing. */
#include "kernels/cuda/device_parts.h"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

static nvtxDomainHandle_t domain;

static void make_domain(void) {
  domain = nvtxDomainCreateA("tandem");
}

static nvtxDomainHandle_t tandem(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, make_domain);
  return domain;
}

static nvtxEventAttributes_t named(const char *name) {
  return (nvtxEventAttributes_t){.version = NVTX_VERSION,
                                 .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                 .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                 .message.ascii = name};
}

uint64_t cuda_range_start(const char *name, int32_t rows) {
  nvtxEventAttributes_t a = named(name);
  a.payloadType = NVTX_PAYLOAD_TYPE_INT32;
  a.payload.iValue = rows;
  return nvtxDomainRangeStartEx(tandem(), &a);
}

void cuda_range_end(uint64_t range) {
  nvtxDomainRangeEnd(tandem(), range);
}

void cuda_range_push(const char *name) {
  const nvtxEventAttributes_t a = named(name);
  nvtxDomainRangePushEx(tandem(), &a);
}

void cuda_range_pop(void) {
  nvtxDomainRangePop(tandem());
}

#else

uint64_t cuda_range_start(const char *name, int32_t rows) {
  (void)name;
  (void)rows;
  return 0;
}

void cuda_range_end(uint64_t range) {
  (void)range;
}

void cuda_range_push(const char *name) {
  (void)name;
}

void cuda_range_pop(void) {}

#endif
