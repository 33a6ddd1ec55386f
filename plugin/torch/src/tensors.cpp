/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks and staging of tensors; see tensors.h.
 */
#include "tensors.h"

#include <algorithm>
#include <optional>

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "errors.h"

namespace quoit_torch {
namespace {

std::optional<quoit_dtype_t> dtype_of(at::ScalarType type)
{
    switch (type) {
    case at::kDouble:
        return QUOIT_F64;
    case at::kFloat:
        return QUOIT_F32;
    case at::kHalf:
        return QUOIT_F16;
    case at::kBFloat16:
        return QUOIT_BF16;
    case at::kFloat8_e4m3fn:
        return QUOIT_F8_E4M3;
    case at::kFloat8_e5m2:
        return QUOIT_F8_E5M2;
    case at::kFloat8_e4m3fnuz:
        return QUOIT_F8_E4M3FNUZ;
    case at::kFloat8_e5m2fnuz:
        return QUOIT_F8_E5M2FNUZ;
    case at::kChar:
        return QUOIT_I8;
    case at::kByte:
        return QUOIT_U8;
    case at::kShort:
        return QUOIT_I16;
    case at::kUInt16:
        return QUOIT_U16;
    case at::kInt:
        return QUOIT_I32;
    case at::kUInt32:
        return QUOIT_U32;
    case at::kLong:
        return QUOIT_I64;
    case at::kUInt64:
        return QUOIT_U64;
    case at::kBool:
        return QUOIT_BOOL;
    case at::kComplexFloat:
        return QUOIT_C64;
    case at::kComplexDouble:
        return QUOIT_C128;
    default:
        return std::nullopt;
    }
}

/** May its memory be taken as it lies? Conjugated and negated views keep other values in memory than they show. */
bool is_plain(const at::Tensor &tensor)
{
    return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

/** Do all elements have memory of their own? Judged by strides: each must step over all that smaller strides cover. */
bool has_own_memory(const at::Tensor &tensor)
{
    std::vector<std::pair<int64_t, int64_t>> dims; /* (stride, size) */
    for (int64_t d = 0; d < tensor.dim(); d++) {
        if (tensor.size(d) == 0)
            return true;
        if (tensor.size(d) > 1)
            dims.emplace_back(tensor.stride(d), tensor.size(d));
    }
    std::sort(dims.begin(), dims.end());
    int64_t covered = 1;
    for (const auto &[stride, size] : dims) {
        if (stride < covered)
            return false;
        covered = stride * (size - 1) + covered;
    }
    return true;
}

/** Bytes that its storage must hold for its last element to lie inside. */
size_t needed_storage(const at::Tensor &tensor)
{
    if (tensor.is_contiguous())
        return (tensor.storage_offset() + tensor.numel()) * tensor.element_size();
    return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(), tensor.storage_offset());
}

/** Whoever frees memory by untyped_storage().resize_(), as FSDP does, leaves tensors behind that end beyond it. */
void check_storage(const Place &place, const at::Tensor &tensor)
{
    if (tensor.numel() == 0)
        return;
    const size_t held = tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes(), needed = needed_storage(tensor);
    QUOIT_CHECK_VALUE(needed <= held, place.text(), " of sizes ", tensor.sizes(), " needs a storage of ", needed, " bytes, but its own holds ",
                      held, ": it was freed or shortened, by untyped_storage().resize_() perhaps");
}

at::Tensor contiguous_copy(const at::Tensor &tensor, bool with_content)
{
    at::AutoDispatchBelowADInplaceOrView guard;
    at::Tensor copy = at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous).requires_grad(false));
    if (with_content)
        copy.copy_(tensor);
    return copy;
}

} // namespace

std::string Place::text() const
{
    std::string text = std::string(operation) + ": " + role;
    if (index >= 0)
        text += " " + std::to_string(index);
    return text;
}

void check_tensor(const Place &place, const at::Tensor &tensor)
{
    QUOIT_CHECK_VALUE(tensor.defined(), place.text(), " is not a tensor");
    QUOIT_CHECK_VALUE(tensor.layout() == at::kStrided, place.text(), " has layout ", tensor.layout(),
                      ", only dense tensors (torch.strided) are supported");
    QUOIT_CHECK_VALUE(tensor.device().is_cpu(), place.text(), " is on device ", tensor.device(),
                      ", but this build of quoit moves tensors of the CPU only: copy it with .cpu(), or use a backend such as "
                      "\"cpu:quoit,cuda:nccl\"");
    check_storage(place, tensor);
}

void check_count(const Place &place, const at::Tensor &tensor, int64_t expected)
{
    QUOIT_CHECK_VALUE(tensor.numel() == expected, place.text(), " has ", tensor.numel(), " elements, expected ", expected);
}

void check_dtype(const Place &place, const at::Tensor &tensor, at::ScalarType expected)
{
    QUOIT_CHECK_VALUE(tensor.scalar_type() == expected, place.text(), " has dtype ", tensor.scalar_type(), ", expected ", expected);
}

void check_list(const char *operation, const char *role, size_t length, size_t expected)
{
    QUOIT_CHECK_VALUE(length == expected, operation, ": got ", length, " ", role, ", expected ", expected);
}

Element element_to_move(const Place &, const at::Tensor &tensor)
{
    if (const std::optional<quoit_dtype_t> dtype = dtype_of(tensor.scalar_type()))
        return {*dtype, 1};
    return {QUOIT_U8, static_cast<size_t>(tensor.element_size())};
}

Element element_to_reduce(const Place &place, const at::Tensor &tensor, quoit_op_t op)
{
    if (tensor.scalar_type() == at::kComplexHalf) {
        TORCH_CHECK_NOT_IMPLEMENTED(is_sum(op), "quoit: ", place.text(), " has dtype ", tensor.scalar_type(), ", which has SUM, AVG and PREMUL_SUM only");
        return {QUOIT_F16, 2};
    }
    const std::optional<quoit_dtype_t> dtype = dtype_of(tensor.scalar_type());
    TORCH_CHECK_NOT_IMPLEMENTED(dtype.has_value(), "quoit: ", place.text(), " has dtype ", tensor.scalar_type(),
                                ", which cannot be reduced");
    return {*dtype, 1};
}

const void *input_memory(Flight &flight, const at::Tensor &tensor)
{
    flight.keep.push_back(is_plain(tensor) ? tensor : contiguous_copy(tensor, true));
    return flight.keep.back().const_data_ptr();
}

void *output_memory(Flight &flight, const Place &place, const at::Tensor &tensor, Content content)
{
    if (is_plain(tensor) && content != Content::kStaged) {
        flight.keep.push_back(tensor);
        return tensor.mutable_data_ptr();
    }
    QUOIT_CHECK_VALUE(has_own_memory(tensor), place.text(), " of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
                      " has elements that share memory (an expanded tensor?), so that no result can be written to it: pass a "
                      ".contiguous() copy");
    flight.copies.emplace_back(tensor, contiguous_copy(tensor, content == Content::kUpdated));
    return flight.copies.back().second.mutable_data_ptr();
}

at::Tensor apart_from(const at::Tensor &input, const at::Tensor &output)
{
    if (!input.is_alias_of(output))
        return input;
    if (is_plain(input) && is_plain(output)) {
        const char *first = static_cast<const char *>(input.const_data_ptr());
        const char *second = static_cast<const char *>(output.const_data_ptr());
        if (first + input.nbytes() <= second || second + output.nbytes() <= first)
            return input;
    }
    return contiguous_copy(input, true);
}

bool share_memory(const std::vector<at::Tensor> &tensors)
{
    c10::SmallVector<std::pair<const char *, const char *>, 16> spans; /* from, to */
    bool rise = true;
    for (const at::Tensor &tensor : tensors) {
        if (!tensor.is_contiguous() || tensor.numel() == 0)
            continue;
        const char *from = static_cast<const char *>(tensor.const_data_ptr());
        rise = rise && (spans.empty() || spans.back().second <= from);
        spans.emplace_back(from, from + tensor.nbytes());
    }
    if (rise)
        return false;
    std::sort(spans.begin(), spans.end());
    for (size_t i = 1; i < spans.size(); i++) {
        if (spans[i].first < spans[i - 1].second)
            return true;
    }
    return false;
}

} // namespace quoit_torch
