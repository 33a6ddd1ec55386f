/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which torch the shim is compiled for. PyTorch's base classes grow from version to version; where one has no macro of its own that
 * says so (C10D_BACKEND_HAS_...), its version decides.
 */
#pragma once

#include <torch/version.h>

#define QUOIT_TORCH_AT_LEAST(major, minor) \
    (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

/* For methods that PyTorch's classes have from 2.14 on; with an older torch Python still reaches them through quoit._C. */
#if QUOIT_TORCH_AT_LEAST(2, 14)
#define QUOIT_OVERRIDE_2_14 override
#else
#define QUOIT_OVERRIDE_2_14
#endif
