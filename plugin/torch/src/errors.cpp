/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status codes to exceptions; see errors.h.
 */
#include "errors.h"

#include <cstdlib>

#include <c10/util/Exception.h>

namespace quoit_torch {
namespace {

template <class Error>
std::exception_ptr error_of(std::string text)
{
    return std::make_exception_ptr(Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, std::move(text)));
}

} // namespace

std::exception_ptr make_error(quoit_status_t status, const std::string &operation, const std::string &text, Stage stage)
{
    std::string message = "quoit: " + operation + ": ";
    if (status == QUOIT_ERR_TIMEOUT && text.find(" Timed out ") == std::string::npos)
        message += "Timed out waiting: ";
    message += text.empty() ? quoit_status_text(status) : text;

    switch (status) {
    case QUOIT_ERR_INVALID:
        return error_of<c10::ValueError>(std::move(message));
    case QUOIT_ERR_UNSUPPORTED:
        return error_of<c10::NotImplementedError>(std::move(message));
    case QUOIT_ERR_NO_MEMORY:
        return error_of<c10::OutOfMemoryError>(std::move(message));
    case QUOIT_ERR_TIMEOUT:
    case QUOIT_ERR_NETWORK:
    case QUOIT_ERR_PEER:
        if (stage == Stage::kSetUp)
            return error_of<c10::DistNetworkError>(std::move(message));
        [[fallthrough]];
    default:
        return error_of<c10::DistBackendError>(std::move(message));
    }
}

void throw_error(quoit_status_t status, const std::string &operation, const std::string &text, Stage stage)
{
    std::rethrow_exception(make_error(status, operation, text, stage));
}

void check_call(quoit_status_t status, const std::string &operation, Stage stage)
{
    if (status < 0)
        throw_error(status, operation, quoit_last_error(), stage);
}

std::string take_text(char *text)
{
    std::string result = text;
    std::free(text);
    return result;
}

} // namespace quoit_torch
