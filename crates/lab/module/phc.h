/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Clocks of the test NICs. */
#ifndef LATPATH_LAB_PHC_H
#define LATPATH_LAB_PHC_H

#include <linux/types.h>

#define NICS 2

struct phc;

/* Makes the clocks that the parameters ask for. */
int phcs_begin(void);
void phcs_end(void);

/* The clock of a NIC. */
struct phc *phc_of_nic(int nr);

/* Its number N, as in /dev/ptpN. */
int phc_index(const struct phc *phc);

/* What it shows at a moment of CLOCK_MONOTONIC, which may be a little ahead of now. */
u64 phc_show(struct phc *phc, u64 monotonic);

#endif
