/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From tensors to memory: what is accepted, and what has to go through a copy.
 *
 * The library sees dense rows of elements. A contiguous tensor is used in place. Any other goes through a contiguous copy, never
 * through its own strides: those may differ from rank to rank. Results are written back element by element, so that memory
 * between a tensor's elements is not touched.
 */
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <quoit/quoit.h>

#include "communicator.h"

namespace quoit_torch {

/** How elements cross: types that torch has but the library has not are moved as `scale` bytes each. */
struct Element {
    quoit_dtype_t dtype;
    size_t scale;
};

/** A text like "output 2" or "tensor", made only when there is something to complain of. */
struct Place {
    const char *operation;
    const char *role;
    int64_t index = -1;
    std::string text() const;
};

/** Defined, dense, in host memory and inside its storage, or a ValueError that says what it is. */
void check_tensor(const Place &place, const at::Tensor &tensor);

/** Throws unless `tensor` has `expected` elements. */
void check_count(const Place &place, const at::Tensor &tensor, int64_t expected);
void check_dtype(const Place &place, const at::Tensor &tensor, at::ScalarType expected);
void check_list(const char *operation, const char *role, size_t length, size_t expected);

Element element_to_move(const Place &place, const at::Tensor &tensor);
/** Complex numbers of halves, which the library has not, are added as two of them. */
Element element_to_reduce(const Place &place, const at::Tensor &tensor, quoit_op_t op);

/** SUM and what is made of it: the operations that take the parts of a complex number by themselves. */
inline bool is_sum(quoit_op_t op)
{
    return op == QUOIT_SUM || op == QUOIT_AVG || op == QUOIT_PREMUL_SUM;
}

/** Memory with the tensor's elements; `flight` keeps it alive. */
const void *input_memory(Flight &flight, const at::Tensor &tensor);

enum class Content {
    kReplaced,
    kUpdated,
    kStaged /* replaced at the end, in the order of the calls */
};

/** Memory that becomes the tensor's elements; it holds them already when the operation updates them. */
void *output_memory(Flight &flight, const Place &place, const at::Tensor &tensor, Content content);

/** `input`, or a copy of it when it shares memory with `output`. */
at::Tensor apart_from(const at::Tensor &input, const at::Tensor &output);

/** Do two of them lie in the same memory, in part or whole? Only contiguous ones are looked at. */
bool share_memory(const std::vector<at::Tensor> &tensors);

} // namespace quoit_torch
