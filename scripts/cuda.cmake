# Compiles CUDA sources for GPUs where TANDEM_CUDA wants it and a toolkit is found: td_kernels_cuda, and a
# function for tests. Nothing links libcuda: the runtime is static, and opens the driver at run time.
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

# Machine code for the GPUs that we know, and PTX, which the driver translates for later ones; or machine code
# for those that are named, as in -DCMAKE_CUDA_ARCHITECTURES=90a, which builds sooner.
if(CMAKE_CUDA_ARCHITECTURES)
  set(architectures ${CMAKE_CUDA_ARCHITECTURES})
else()
  set(architectures 80 86 89 90a)
  set(cuda_gpus -gencode arch=compute_90,code=compute_90)
endif()
foreach(arch ${architectures})
  list(APPEND cuda_gpus -gencode arch=compute_${arch},code=sm_${arch})
endforeach()
set(cuda_flags -ccbin ${CMAKE_CXX_COMPILER} -std=c++17 -fmad=false -I${CMAKE_SOURCE_DIR}
    -Werror all-warnings -Xcompiler
    -O2,-g1,-Wall,-Wextra,-Werror,-ffp-contract=off,-fno-fast-math,-fno-omit-frame-pointer
    --threads 0 --compress-mode=size)
if(NOT CMAKE_BUILD_TYPE STREQUAL "Release")
  list(APPEND cuda_flags -lineinfo) # for compute-sanitizer and profilers; makes objects three times as large
endif()

# cuda_object(OUT SOURCE FLAGS...): sets OUT to the object that nvcc makes of a source file.
function(cuda_object out source)
  get_filename_component(name ${source} NAME)
  set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
  add_custom_command(OUTPUT ${object} DEPENDS ${source} ${cuda_nvcc} DEPFILE ${object}.d VERBATIM
    COMMAND ${cuda_nvcc} ${cuda_flags} ${ARGN} -MMD -MF ${object}.d -c ${source} -o ${object}
    COMMENT "Building CUDA object ${name}.o")
  set(${out} ${object} PARENT_SCOPE)
endfunction()

file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
foreach(source ${cuda_sources})
  if(NOT source MATCHES "/shim[^/]*$")
    cuda_object(object ${source} ${cuda_gpus})
    list(APPEND cuda_objects ${object})
  endif()
endforeach()
add_library(td_kernels_cuda STATIC ${cuda_objects} ${cuda_host_sources})
set_target_properties(td_kernels_cuda PROPERTIES LINKER_LANGUAGE CXX)
target_include_directories(td_kernels_cuda SYSTEM PRIVATE ${cuda_include})
target_link_libraries(td_kernels_cuda PUBLIC td_cpu ${cuda_runtime} Threads::Threads ${CMAKE_DL_LIBS} rt
  stdc++)
