# Every target is made by one of these, so that flags live in one place.

add_library(zckpt_flags INTERFACE)
target_compile_options(zckpt_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
  -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual -Wcast-align
  -ffp-contract=off)
if(ZCKPT_WERROR)
  target_compile_options(zckpt_flags INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 warns about code that -O2 inlined out of the standard library.
  target_compile_options(zckpt_flags INTERFACE
    -Wno-restrict -Wno-stringop-overflow -Wno-array-bounds
    # {.file = path} leaves the other members at their defaults on purpose.
    -Wno-missing-field-initializers)
else()
  target_compile_options(zckpt_flags INTERFACE
    -Wno-missing-field-initializers)
endif()
if(ZCKPT_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # With sanitizers GCC 12 sees uninitialised values inside std::regex.
  target_compile_options(zckpt_flags INTERFACE -Wno-maybe-uninitialized)
endif()
if(ZCKPT_SANITIZE)
  target_compile_options(zckpt_flags INTERFACE
    -fsanitize=${ZCKPT_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  target_link_options(zckpt_flags INTERFACE -fsanitize=${ZCKPT_SANITIZE})
endif()

# zckpt_library(NAME SOURCES ... [DEPENDS ...]): one folder of src/.
function(zckpt_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(zckpt_${name} STATIC ${ARG_SOURCES})
  target_include_directories(zckpt_${name} PUBLIC
    "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(zckpt_${name} PUBLIC ${ARG_DEPENDS} PRIVATE zckpt_flags)
  set_property(GLOBAL APPEND PROPERTY ZCKPT_PARTS zckpt_${name})
endfunction()

# zckpt_test(NAME SOURCES ... [DEPENDS ...] [LABELS ...]): one GoogleTest
# program, one ctest entry per test case.
function(zckpt_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} zckpt_test_support
    GTest::gmock GTest::gtest_main zckpt_flags)
  target_compile_definitions(${name} PRIVATE
    ZCKPT_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures")
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS "${ARG_LABELS}")
endfunction()
