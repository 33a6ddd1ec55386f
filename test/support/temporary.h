/* SPDX-License-Identifier: Apache-2.0 */
/* Where a test's own files are: under TMPDIR, as any program's, so that test/run sees what is left behind and by whom. */
#ifndef QUOIT_TEST_TEMPORARY_H
#define QUOIT_TEST_TEMPORARY_H

#include <cstdlib>
#include <string>

/** A name for mkdtemp or mkstemp. */
inline std::string temporary_pattern(const std::string &what)
{
    const char *directory = getenv("TMPDIR");
    return std::string(directory && *directory ? directory : "/tmp") + "/quoit-" + what + "-XXXXXX";
}

#endif
