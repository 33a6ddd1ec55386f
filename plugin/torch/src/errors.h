/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a failure of the library becomes a Python exception: the type is chosen here, the text is the library's.
 */
#pragma once

#include <exception>
#include <string>

#include <quoit/quoit.h>

namespace quoit_torch {

/** When a failure happened: the exception's type depends on it. */
enum class Stage { kSetUp, kOperation };

/**
 * The exception for `status`, with the text "quoit: <operation>: <text>".
 *
 * ERR_INVALID is a ValueError, ERR_UNSUPPORTED a NotImplementedError. What the network or a peer did is a DistNetworkError while
 * a group is set up and a DistBackendError afterwards. Timeouts say "Timed out", which callers of PyTorch look for.
 */
std::exception_ptr make_error(quoit_status_t status, const std::string &operation, const std::string &text,
                              Stage stage = Stage::kOperation);

[[noreturn]] void throw_error(quoit_status_t status, const std::string &operation, const std::string &text,
                              Stage stage = Stage::kOperation);

/** Throws when this thread's newest call of the library has failed. */
void check_call(quoit_status_t status, const std::string &operation, Stage stage = Stage::kOperation);

/**
 * The library's text as Python may see it: "?" for each byte that is no UTF-8, as in a host's name, or where a text was cut short, and
 * the package's name of a call that the library advises.
 */
std::string for_python(std::string text);

/** A text that the library has allocated; it is freed. */
std::string take_text(char *text);

} // namespace quoit_torch

/** Throw a ValueError "quoit: ..." unless `condition` holds: a caller's mistake that is found before anything was sent. */
#define QUOIT_CHECK_VALUE(condition, ...) TORCH_CHECK_VALUE(condition, "quoit: ", __VA_ARGS__)
