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

std::string with_names_of_package(std::string text)
{
    static const std::string ours = "quoit_comm_shrink", theirs = "quoit.shrink";
    for (size_t at = 0; (at = text.find(ours, at)) != std::string::npos;)
        text.replace(at, ours.size(), theirs);
    return text;
}

/** Length of the UTF-8 sequence that begins at text[at]; 0 when there is none. */
size_t sequence_length(const std::string &text, size_t at)
{
    const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
    const unsigned first = byte(at), second = byte(at + 1);
    const size_t length = first < 0x80 ? 1 : first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xf0 && first < 0xf5 ? 4 : 0;
    if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) || (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f))
        return 0; /* longer than needed, half of a pair, or beyond the last character */
    for (size_t i = 1; i < length; i++) {
        if ((byte(at + i) & 0xc0) != 0x80)
            return 0;
    }
    return length;
}

} // namespace

std::string for_python(std::string text)
{
    text = with_names_of_package(std::move(text));
    std::string result;
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
        const size_t length = sequence_length(text, at);
        if (length > 0) {
            at += length;
            continue;
        }
        result.append(text, done, at - done).append("?");
        done = ++at;
    }
    return done == 0 ? text : result.append(text, done);
}

std::exception_ptr make_error(quoit_status_t status, const std::string &operation, const std::string &text, Stage stage)
{
    std::string message = "quoit: " + operation + ": ";
    if (status == QUOIT_ERR_TIMEOUT && text.find(" Timed out ") == std::string::npos)
        message += "Timed out waiting: ";
    message += text.empty() ? quoit_status_text(status) : text;
    message = for_python(std::move(message));

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
    return for_python(std::move(result));
}

} // namespace quoit_torch
