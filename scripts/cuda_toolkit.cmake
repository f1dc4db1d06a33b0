# Finds the CUDA toolkit to build with: sets cuda_nvcc, cuda_version, cuda_runtime (libcudart_static.a) and
# cuda_include (the folder of cuda_runtime_api.h), or leaves cuda_version empty. cuda.cmake includes this
# file, and `cmake -P scripts/cuda_toolkit.cmake` tells deps.sh what there is (its status is 1 when there is
# nothing). The first toolkit that is complete and new enough is taken: of the nvcc that CMake or the
# environment names, of nvcc in PATH, in the usual folder, or of the wheels that `scripts/deps.sh --cuda`
# installs into build/cuda.
set(cuda_oldest 12.8)

function(cuda_look_at nvcc)
  execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE rc)
  if(NOT rc EQUAL 0 OR NOT text MATCHES "release [0-9.]+, V([0-9.]+)"
     OR CMAKE_MATCH_1 VERSION_LESS cuda_oldest)
    return()
  endif()
  set(version ${CMAKE_MATCH_1})
  get_filename_component(real ${nvcc} REALPATH)
  get_filename_component(root ${real}/../.. ABSOLUTE)
  file(GLOB runtime ${root}/lib64/libcudart_static.a ${root}/lib/libcudart_static.a
       ${root}/targets/*/lib/libcudart_static.a ${root}/lib/*/libcudart_static.a)
  file(GLOB header ${root}/include/cuda_runtime_api.h ${root}/targets/*/include/cuda_runtime_api.h)
  if(runtime AND header)
    list(GET runtime 0 runtime)
    list(GET header 0 header)
    get_filename_component(include ${header} DIRECTORY)
    set(cuda_nvcc ${nvcc} PARENT_SCOPE)
    set(cuda_version ${version} PARENT_SCOPE)
    set(cuda_runtime ${runtime} PARENT_SCOPE)
    set(cuda_include ${include} PARENT_SCOPE)
  endif()
endfunction()

set(cuda_version "")
find_program(cuda_in_path nvcc NO_CACHE)
get_filename_component(cuda_wheels ${CMAKE_CURRENT_LIST_DIR}/../build/cuda/nvidia/cu13 ABSOLUTE)
foreach(candidate ${CMAKE_CUDA_COMPILER} $ENV{CUDACXX} ${cuda_in_path} /usr/local/cuda/bin/nvcc
        ${cuda_wheels}/bin/nvcc)
  if(EXISTS ${candidate} AND NOT cuda_version)
    cuda_look_at(${candidate})
  endif()
endforeach()

if(CMAKE_SCRIPT_MODE_FILE)
  if(NOT cuda_version)
    message(FATAL_ERROR "There is no CUDA toolkit of version ${cuda_oldest} or later.")
  endif()
  message(STATUS "CUDA ${cuda_version}: ${cuda_nvcc}")
endif()
