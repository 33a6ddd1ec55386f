/* SPDX-License-Identifier: Apache-2.0 */
/* What a test's own code may know of the build it was linked in, and of how long it may take. Asked at run time, not told by the compiler: the
 * same objects are linked once with the plain core and once with the one that AddressSanitizer checks (test/CMakeLists.txt). */
#ifndef QUOIT_TEST_BUILT_H
#define QUOIT_TEST_BUILT_H

#include <climits>
#include <cstdlib>
#include <cstring>
#include <string>

#include <unistd.h>

extern "C" __attribute__((weak)) void __asan_init(void);
extern "C" __attribute__((weak)) void __tsan_init(void);

/** Whether the core is sanitized: slower, and with another idea of memory. */
inline bool built_sanitized() { return __asan_init || __tsan_init; }

/** QUOIT_TEST_LONG=1: the long form, not the sample. Unset, empty and 0 mean the sample. */
inline bool built_long_run()
{
    const char *value = getenv("QUOIT_TEST_LONG");
    return value && *value && strcmp(value, "0") != 0;
}

/** The path of something that was built beside this program: `relative` to the program's folder. */
inline std::string built_path(const char *relative)
{
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program);
    std::string path(program, length > 0 ? static_cast<size_t>(length) : 0);
    return path.substr(0, path.rfind('/') + 1) + relative;
}

#endif
