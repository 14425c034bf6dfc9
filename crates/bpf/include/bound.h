/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
#ifndef LATPATH_BOUND_H
#define LATPATH_BOUND_H

#ifndef BOUND /* user space has its own */
/* Masks an index to below `size` (a power of two). In assembler, because some verifiers forget the bound of a spilled
 * register. */
#define BOUND(x, size) asm volatile("%0 &= %1" : "+r"(x) : "i"((size) - 1))
#endif

#endif
