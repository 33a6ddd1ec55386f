/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the shim must know of the Python interpreter: giving its lock away, hearing its signals, and its end.
 */
#pragma once

#include <optional>

#include <pybind11/pybind11.h>

namespace quoit_torch {

/** Gives the interpreter's lock away for its lifetime when this thread holds it. Everything that may block stands under one. */
class WithoutGil {
public:
    WithoutGil()
    {
        if (Py_IsInitialized() && PyGILState_Check())
            release_.emplace();
    }

private:
    std::optional<pybind11::gil_scoped_release> release_;
};

/** Run pending signal handlers when called in the main thread; throws what they raise (KeyboardInterrupt). */
void check_signals();

} // namespace quoit_torch
