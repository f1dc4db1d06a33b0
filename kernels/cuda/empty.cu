/* empty.cu - a kernel for the build to compile until there are others. */
#ifdef __CUDACC__
static __global__ void empty(void) {}
void cuda_empty(void);
void cuda_empty(void) {
  empty<<<1, 1>>>();
}
#endif
