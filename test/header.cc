/* SPDX-License-Identifier: Apache-2.0 */
/* Carries the precompiled header of all tests: see CMakeLists.txt. */
int main()
{
    return 0;
}
