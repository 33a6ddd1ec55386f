/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals of the Python interpreter; see interpreter.h.
 */
#include "interpreter.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace quoit_torch {
namespace {

bool interpreter_is_ending()
{
#if PY_VERSION_HEX >= 0x030d0000
    return Py_IsFinalizing() != 0;
#else
    return _Py_IsFinalizing() != 0;
#endif
}

} // namespace

void check_signals()
{
    /* Python runs handlers in the main thread only, so that other threads need not ask for the lock. */
    if (syscall(SYS_gettid) != getpid() || !Py_IsInitialized() || interpreter_is_ending())
        return;
    pybind11::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0)
        throw pybind11::error_already_set();
}

} // namespace quoit_torch
