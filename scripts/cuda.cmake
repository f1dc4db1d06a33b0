# Compiles kernels/cuda/*.cu for GPUs: td_kernels_cuda, where TANDEM_CUDA wants it and a toolkit is found.
# Nothing links libcuda: the runtime is static, and opens the driver at run time if there is one.
if(NOT TANDEM_CUDA)
  return()
endif()
include(scripts/cuda_toolkit.cmake)
if(NOT cuda_version AND TANDEM_CUDA STREQUAL "AUTO")
  message(STATUS "CUDA: off, there is no toolkit of version ${cuda_oldest} or later")
  return()
elseif(NOT cuda_version)
  message(FATAL_ERROR "TANDEM_CUDA is ON, but there is no CUDA toolkit of version ${cuda_oldest} or later "
    "with nvcc and libcudart_static.a. scripts/deps.sh --cuda installs one into build/cuda; "
    "-DCMAKE_CUDA_COMPILER=/path/to/nvcc names one elsewhere; -DTANDEM_CUDA=OFF builds without.")
endif()
message(STATUS "CUDA ${cuda_version}: ${cuda_nvcc}")

# Machine code for the GPUs that we know, and PTX, which the driver translates for later ones.
set(cuda_flags -ccbin ${CMAKE_CXX_COMPILER} -std=c++17 -fmad=false -lineinfo -I${CMAKE_SOURCE_DIR})
foreach(arch 80 86 89 90a)
  list(APPEND cuda_flags -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
list(APPEND cuda_flags -gencode arch=compute_90,code=compute_90)
list(APPEND cuda_flags -Werror all-warnings -Xcompiler
     -O2,-g1,-Wall,-Wextra,-Werror,-ffp-contract=off,-fno-fast-math,-fno-omit-frame-pointer)

foreach(source ${cuda_sources})
  get_filename_component(name ${source} NAME)
  if(NOT name MATCHES "^shim")
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object} DEPENDS ${source} ${cuda_nvcc} DEPFILE ${object}.d VERBATIM
      COMMAND ${cuda_nvcc} ${cuda_flags} -MMD -MF ${object}.d -c ${source} -o ${object}
      COMMENT "Building CUDA object ${name}.o")
    list(APPEND cuda_objects ${object})
  endif()
endforeach()
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
add_library(td_kernels_cuda STATIC ${cuda_objects})
set_target_properties(td_kernels_cuda PROPERTIES LINKER_LANGUAGE CXX)
target_compile_definitions(td_kernels_cuda INTERFACE TANDEM_CUDA)
target_link_libraries(td_kernels_cuda PUBLIC td_kernels ${cuda_runtime} Threads::Threads ${CMAKE_DL_LIBS} rt)
