// SPDX-License-Identifier: Apache-2.0
// What AddressSanitizer's programs begin with; ASAN_OPTIONS of the environment adds to it.
// intercept_tls_get_addr: of a library that was opened at run time it takes the block of thread-local variables for one of an old C
// library when it lies 16 bytes behind the start of a page. As such it has no header, and the search for leaks dies of reading where the header
// points. Without the option blocks are found as other memory is: through the C library's tables.
__attribute__((visibility("default"))) const char *__asan_default_options(void); // the library looks for it

const char *__asan_default_options(void)
{
    return "detect_stack_use_after_return=1:strict_string_checks=1:intercept_tls_get_addr=0";
}
